import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.IOException;
import java.net.URI;
import java.time.Duration;
import java.time.OffsetDateTime;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.UUID;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.zalando.fahrschein.AuthorizationBuilder;
import org.zalando.fahrschein.CursorCommitException;
import org.zalando.fahrschein.CursorManager;
import org.zalando.fahrschein.EventPublishingException;
import org.zalando.fahrschein.ExponentialBackoffStrategy;
import org.zalando.fahrschein.IOProblem;
import org.zalando.fahrschein.ManagedCursorManager;
import org.zalando.fahrschein.MetricsCollector;
import org.zalando.fahrschein.NakadiClient;
import org.zalando.fahrschein.StreamBuilder;
import org.zalando.fahrschein.StreamParameters;
import org.zalando.fahrschein.SubscriptionBuilder;
import org.zalando.fahrschein.domain.Cursor;
import org.zalando.fahrschein.domain.DataOperation;
import org.zalando.fahrschein.domain.Lock;
import org.zalando.fahrschein.domain.Metadata;
import org.zalando.fahrschein.domain.Partition;
import org.zalando.fahrschein.domain.Subscription;
import org.zalando.fahrschein.http.api.ContentEncoding;
import org.zalando.fahrschein.http.api.RequestFactory;
import org.zalando.fahrschein.http.simple.SimpleRequestFactory;

/** Runs one command with Fahrschein: URL COMMAND ARGUMENT…. Prints the result as one line of JSON. */
public class FahrscheinUser {
    private static final String APPLICATION = "billing";

    public static class Order {
        public Metadata metadata;
        public String order;
    }

    public static class Change {
        public Metadata metadata;
        public String dataType;
        public DataOperation dataOp;
        public Map<String, Object> data;
    }

    /** Cursors of the low-level API, which the application stores itself. */
    private static class OwnCursors implements CursorManager {
        private final Map<String, Cursor> kept = new LinkedHashMap<>();

        @Override
        public synchronized void onSuccess(String eventName, Cursor cursor) {
            kept.put(cursor.getPartition(), cursor);
        }

        @Override
        public void onSuccess(String eventName, List<Cursor> cursors) {
            cursors.forEach(cursor -> onSuccess(eventName, cursor));
        }

        @Override
        public synchronized Collection<Cursor> getCursors(String eventName) {
            return new ArrayList<>(kept.values());
        }
    }

    /** Counts down until that many events are handled and their cursors are committed. */
    private static class Progress implements MetricsCollector {
        private final CountDownLatch left;
        private int inHand;
        private volatile int reconnections;

        Progress(int events) {
            left = new CountDownLatch(events);
        }

        @Override
        public void markMessageReceived() {}

        @Override
        public void markEventsReceived(int size) {
            inHand = size;
        }

        @Override
        public void markErrorWhileConsuming() {}

        @Override
        public void markReconnection() {
            reconnections++;
        }

        @Override
        public void markMessageSuccessfullyProcessed() {
            for (; inHand > 0; inHand--) {
                left.countDown();
            }
        }
    }

    private final URI uri;
    private final OwnCursors own = new OwnCursors();

    private FahrscheinUser(URI uri) {
        this.uri = uri;
    }

    public static void main(String[] arguments) throws Exception {
        Object result;
        try {
            String[] rest = Arrays.copyOfRange(arguments, 2, arguments.length);
            result = new FahrscheinUser(URI.create(arguments[0])).run(arguments[1], rest);
        } catch (EventPublishingException e) {
            result = failure(e, 0, Map.of("items", e.getResponses()));
        } catch (CursorCommitException e) {
            result = failure(e, e.getStatusCode(), Map.of());
        } catch (IOProblem e) {
            Map<String, Object> more = Map.of("title", e.getTitle(), "detail", e.getDetail().orElse(""));
            result = failure(e, e.getStatusCode(), more);
        }
        System.out.println(new ObjectMapper().findAndRegisterModules().writeValueAsString(result));
        System.exit(0); // streams are still open
    }

    private static Map<String, Object> failure(IOException error, int status, Map<String, Object> more) {
        Map<String, Object> result = new HashMap<>(more);
        result.put("error", error.getClass().getSimpleName());
        result.put("status", status);
        return result;
    }

    private Object run(String command, String[] given) throws Exception {
        switch (command) {
            case "partitions":
                return client(ContentEncoding.IDENTITY).getPartitions(given[0]);
            case "publish":
                List<String> orders = Arrays.asList(given).subList(2, given.length);
                return publish(given[0], ContentEncoding.valueOf(given[1]), orders);
            case "publish-change":
                return publishChange(given[0], given[1]);
            case "subscribe":
                return subscription(given[0], given[1], "begin").subscribe();
            case "unsubscribe":
                client(ContentEncoding.IDENTITY).deleteSubscription(given[0]);
                return true;
            case "consume":
                return consume(given[0], given[1], given[2], Integer.parseInt(given[3]), parameters(given, 4));
            case "commit":
                return commit(given[0], given[1], given[2], given[3]);
            case "read":
                return read(given[0], given[1], Integer.parseInt(given[2]), parameters(given, 3));
            default:
                throw new IllegalArgumentException(command);
        }
    }

    private RequestFactory requests(ContentEncoding encoding) {
        SimpleRequestFactory factory = new SimpleRequestFactory(encoding);
        factory.setConnectTimeout(5000); // the default of half a second is too short on a busy machine
        return factory;
    }

    private NakadiClient client(ContentEncoding encoding) {
        return NakadiClient.builder(uri, requests(encoding)).withAccessTokenProvider(() -> "some-token").build();
    }

    private static StreamParameters parameters(String[] given, int first) {
        StreamParameters parameters = new StreamParameters().withBatchFlushTimeout(1);
        if (given.length > first) {
            parameters = parameters.withBatchLimit(Integer.parseInt(given[first]));
        }
        if (given.length > first + 1) {
            parameters = parameters.withStreamLimit(Integer.parseInt(given[first + 1]));
        }
        return parameters;
    }

    private static Metadata metadata() {
        return new Metadata(UUID.randomUUID().toString(), OffsetDateTime.now(), "a-flow", Map.of("span", "1"));
    }

    private Object publish(String eventType, ContentEncoding encoding, List<String> orders) throws IOException {
        List<Order> events = new ArrayList<>();
        for (String order : orders) {
            Order event = new Order();
            event.metadata = metadata();
            event.order = order.equals("null") ? null : order;
            events.add(event);
        }
        client(encoding).publish(eventType, events);
        List<String> eids = new ArrayList<>();
        events.forEach(event -> eids.add(event.metadata.getEid()));
        return eids;
    }

    private Object publishChange(String eventType, String order) throws IOException {
        Change event = new Change();
        event.metadata = metadata();
        event.dataType = "order";
        event.dataOp = DataOperation.SNAPSHOT;
        event.data = Map.of("order", order);
        client(ContentEncoding.GZIP).publish(eventType, List.of(event));
        return event.metadata.getEid();
    }

    private SubscriptionBuilder subscription(String eventTypes, String group, String from) throws IOException {
        NakadiClient client = client(ContentEncoding.IDENTITY);
        SubscriptionBuilder builder =
                client.subscription(APPLICATION, new LinkedHashSet<>(Arrays.asList(eventTypes.split(","))))
                        .withConsumerGroup(group)
                        .withAuthorization(AuthorizationBuilder.authorization().addAdmin("user", "me").build());
        if (!from.equals("cursors")) {
            return from.equals("begin") ? builder.readFromBegin() : builder.readFromEnd();
        }
        List<Cursor> cursors = new ArrayList<>();
        for (Partition partition : client.getPartitions(eventTypes)) {
            cursors.add(new Cursor(partition.getPartition(), partition.getNewestAvailableOffset(), eventTypes));
        }
        return builder.readFromCursors(cursors);
    }

    /** Reads as one client of a group until `count` events are committed. */
    private Object consume(String eventTypes, String group, String from, int count, StreamParameters limits)
            throws Exception {
        Subscription subscription = subscription(eventTypes, group, from).subscribe();
        ManagedCursorManager cursors = new ManagedCursorManager(uri, requests(ContentEncoding.IDENTITY));
        cursors.addSubscription(subscription);
        NakadiClient client =
                NakadiClient.builder(uri, requests(ContentEncoding.IDENTITY)).withCursorManager(cursors).build();
        Map<String, Object> result = follow(client.stream(subscription), count, limits);
        List<Cursor> committed = new ArrayList<>();
        for (String eventType : subscription.getEventTypes()) {
            committed.addAll(cursors.getCursors(eventType));
        }
        result.put("subscription", subscription.getId());
        result.put("cursors", committed);
        return result;
    }

    private static Map<String, Object> follow(StreamBuilder builder, int count, StreamParameters limits)
            throws Exception {
        List<Map<String, Object>> found = new ArrayList<>();
        Progress progress = new Progress(count);
        IOException[] failed = new IOException[1];
        Runnable listening = () -> {
            try {
                builder.withStreamParameters(limits)
                        .withMetricsCollector(progress)
                        .withBackoffStrategy(new ExponentialBackoffStrategy(100, 1.5, 1000, 100))
                        .listen(Order.class, events -> {
                            for (Order event : events) {
                                found.add(shown(event));
                            }
                        });
            } catch (IOException e) {
                failed[0] = e;
                while (progress.left.getCount() > 0) {
                    progress.left.countDown();
                }
            }
        };
        Thread thread = new Thread(listening);
        thread.setDaemon(true);
        thread.start();
        if (!progress.left.await(60, TimeUnit.SECONDS)) {
            throw new IllegalStateException(progress.left.getCount() + " of " + count + " events did not arrive");
        }
        if (failed[0] != null) {
            throw failed[0];
        }
        return new HashMap<>(Map.of("events", found, "reconnections", progress.reconnections));
    }

    private static Map<String, Object> shown(Order event) {
        Metadata metadata = event.metadata;
        Map<String, Object> shown = new HashMap<>();
        shown.put("order", event.order);
        shown.put("eid", metadata.getEid());
        shown.put("event_type", metadata.getEventType());
        shown.put("partition", metadata.getPartition());
        shown.put("flow_id", metadata.getFlowId());
        shown.put("span_ctx", metadata.getSpanCtx());
        shown.put("version", metadata.getVersion());
        shown.put("seconds", Duration.between(metadata.getOccurredAt(), metadata.getReceivedAt()).toSeconds());
        return shown;
    }

    /** Commits one cursor for any stream, also of another client. */
    private Object commit(String subscriptionId, String streamId, String eventType, String offset)
            throws IOException {
        Subscription subscription = new Subscription(subscriptionId, "", Set.of(eventType), "", null, null);
        ManagedCursorManager cursors = new ManagedCursorManager(uri, requests(ContentEncoding.IDENTITY));
        cursors.addSubscription(subscription);
        cursors.addStreamId(subscription, streamId);
        cursors.onSuccess(eventType, new Cursor("0", offset, eventType, "a-token"));
        return true;
    }

    /** Reads the low-level stream: from `begin`, `begin:0,2` for some partitions, `newest`, or cursors `0=…,1=…`. */
    private Object read(String eventType, String from, int count, StreamParameters limits) throws Exception {
        NakadiClient client =
                NakadiClient.builder(uri, requests(ContentEncoding.IDENTITY)).withCursorManager(own).build();
        List<Partition> partitions = client.getPartitions(eventType);
        StreamBuilder.LowLevelStreamBuilder builder = client.stream(eventType);
        if (from.startsWith("begin")) {
            builder = builder.readFromBegin(partitions);
            if (from.contains(":")) {
                List<String> wanted = Arrays.asList(from.substring("begin:".length()).split(","));
                partitions.removeIf(partition -> !wanted.contains(partition.getPartition()));
                builder = builder.withLock(new Lock(eventType, "me", partitions));
            }
        } else if (from.equals("newest")) {
            builder = builder.readFromNewestAvailableOffset(partitions);
        } else {
            for (String one : from.split(",")) {
                String[] parts = one.split("=");
                own.onSuccess(eventType, new Cursor(parts[0], parts[1]));
            }
            builder = builder.skipUnavailableOffsets(partitions);
        }
        Map<String, Object> result = follow(builder, count, limits);
        result.put("cursors", own.getCursors(eventType));
        return result;
    }
}
