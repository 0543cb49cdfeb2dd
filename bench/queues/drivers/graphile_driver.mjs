// graphile-worker: a task that does nothing. With batches, the worker also fetches and completes jobs in batches.
import { Backlog, given, require } from "./turns.mjs";

const { Logger, makeWorkerUtils, run, runMigrations } = require("graphile-worker");

const backlog = new Backlog();
const silent = new Logger(() => () => {});
const connection = { connectionString: given.url, logger: silent };
const batches = {
  worker: { localQueue: { size: Math.max(given.batch, given.callers) }, completeJobBatchDelay: 0 },
};

await runMigrations(connection);
const utils = await makeWorkerUtils({ ...connection, maxPoolSize: given.callers });
await run({
  ...connection,
  concurrency: given.callers,
  maxPoolSize: given.callers + 2,
  noHandleSignals: true,
  pollInterval: 50,
  taskList: { work: async () => backlog.done() },
  preset: given.batch === 1 ? {} : batches,
});

const payload = JSON.parse(given.body);
const add = given.batch === 1
  ? () => utils.addJob("work", payload)
  : () => utils.addJobs(Array.from({ length: given.batch }, () => ({ identifier: "work", payload })));
await backlog.serve(add);
process.exit();
