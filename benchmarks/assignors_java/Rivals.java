import java.lang.management.ManagementFactory;
import java.lang.management.ThreadMXBean;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Random;
import java.util.Set;
import java.util.TreeMap;
import java.util.function.Supplier;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.Assignment;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.Subscription;
import org.apache.kafka.clients.consumer.CooperativeStickyAssignor;
import org.apache.kafka.clients.consumer.StickyAssignor;
import org.apache.kafka.clients.consumer.internals.AbstractStickyAssignor;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.coordinator.group.api.assignor.GroupAssignment;
import org.apache.kafka.coordinator.group.api.assignor.SubscribedTopicDescriber;
import org.apache.kafka.coordinator.group.api.assignor.SubscriptionType;
import org.apache.kafka.coordinator.group.assignor.UniformAssignor;
import org.apache.kafka.coordinator.group.modern.GroupSpecImpl;
import org.apache.kafka.coordinator.group.modern.MemberSubscriptionAndAssignmentImpl;

/**
 * Times Kafka's own assignors in a warm JVM. Each argument is members:partitions:topics:topicsPerMember; one line per
 * assignor and event: name members partitions topicsPerMember event milliseconds (median).
 */
public class Rivals {
    /** CPU time of the thread that assigns: other work on the machine and the collector's threads are left out. */
    static final ThreadMXBean CPU = ManagementFactory.getThreadMXBean();
    static final String[] EVENTS = {"first", "nothing", "lost", "joined", "scale-out"};

    public static void main(String[] args) {
        for (String size : args) {
            int[] n = Arrays.stream(size.split(":")).mapToInt(Integer::parseInt).toArray();
            // Warm up at a small size of the same kind, so that what is timed is compiled code.
            boolean equal = n[3] >= n[2];
            for (long end = System.nanoTime() + 10_000_000_000L; System.nanoTime() < end; ) {
                Group small = equal ? new Group(200, 20000, 10, 10) : new Group(60, 1200, 20, 5);
                small.uniform(1, false);
                small.client(true, 1, false);
                small.client(false, 1, false);
            }
            int repeat = n[1] > 500000 ? 5 : n[1] > 50000 ? 9 : 25;
            new Group(n[0], n[1], n[2], n[3]).uniform(repeat, true);
            new Group(n[0], n[1], n[2], n[3]).client(true, repeat, true);
            new Group(n[0], n[1], n[2], n[3]).client(false, repeat, true);
        }
    }

    static class Group {
        final int members, partitions, perMember;
        final List<String> topics = new ArrayList<>();
        final Map<String, Integer> counts = new HashMap<>();
        final Map<String, List<String>> reads = new TreeMap<>();
        final Random random = new Random(3);

        Group(int members, int partitions, int topics, int perMember) {
            this.members = members;
            this.partitions = partitions;
            this.perMember = perMember;
            for (int t = 0; t < topics; t++) {
                this.topics.add(String.format("topic-%04d", t));
                counts.put(this.topics.get(t), partitions / topics);
            }
            for (int m = 0; m < members; m++) {
                reads.put(String.format("member-%05d", m), draw());
            }
        }

        List<String> draw() {
            if (perMember >= topics.size()) return topics;
            Set<Integer> chosen = new HashSet<>();
            while (chosen.size() < perMember) chosen.add(random.nextInt(topics.size()));
            List<String> names = new ArrayList<>();
            for (int t : chosen) names.add(topics.get(t));
            return names;
        }

        /** Members after an event: those of the first assignment, one or some gone or come. */
        Map<String, List<String>> after(String event) {
            Map<String, List<String>> now = new TreeMap<>(reads);
            if (event.equals("lost")) now.remove("member-00007");
            if (event.equals("joined")) now.put("member-00007x", draw());
            if (event.equals("scale-out")) {
                for (int i = 0; i < members / 10; i++) now.put(String.format("new-%05d", i), draw());
            }
            return now;
        }

        void say(String name, String event, double milliseconds) {
            System.out.printf("%s %d %d %d %s %.3f%n", name, members, partitions, perMember, event, milliseconds);
        }

        <T> T timed(String name, String event, int repeat, boolean print, Supplier<Supplier<T>> prepare) {
            double[] took = new double[repeat];
            T result = null;
            int done = 0;
            // As often as asked, but not for more than three seconds.
            for (long end = System.nanoTime() + 3_000_000_000L; done < repeat; done++) {
                if (done > 0 && System.nanoTime() > end) break;
                Supplier<T> run = prepare.get();
                if (print && partitions > 50000) System.gc();
                long start = CPU.getCurrentThreadCpuTime();
                result = run.get();
                took[done] = (CPU.getCurrentThreadCpuTime() - start) / 1e6;
            }
            Arrays.sort(took, 0, done);
            if (print) say(name, event, took[done / 2]);
            return result;
        }

        void client(boolean cooperative, int repeat, boolean print) {
            String name = cooperative ? "CooperativeStickyAssignor" : "StickyAssignor";
            Supplier<AbstractStickyAssignor> make =
                () -> cooperative ? new CooperativeStickyAssignor() : new StickyAssignor();
            Map<String, List<TopicPartition>> first = null;
            for (String event : EVENTS) {
                Map<String, List<String>> now = event.equals("first") ? reads : after(event);
                Map<String, List<TopicPartition>> before = first;
                Map<String, Subscription> subscriptions = new HashMap<>();
                for (Map.Entry<String, List<String>> member : now.entrySet()) {
                    List<TopicPartition> owned =
                        before == null ? List.of() : before.getOrDefault(member.getKey(), List.of());
                    ByteBuffer data = null;
                    AbstractStickyAssignor own = make.get();
                    if (!owned.isEmpty()) {
                        own.onAssignment(new Assignment(owned),
                            new ConsumerGroupMetadata("g", 1, member.getKey(), Optional.empty()));
                        data = own.subscriptionUserData(new HashSet<>(member.getValue()));
                    }
                    subscriptions.put(member.getKey(), new Subscription(member.getValue(), data, owned,
                        owned.isEmpty() ? -1 : 1, Optional.empty()));
                }
                Map<String, List<TopicPartition>> result = timed(name, event, repeat, print, () -> {
                    AbstractStickyAssignor assignor = make.get();
                    for (Subscription subscription : subscriptions.values()) {
                        if (subscription.userData() != null) subscription.userData().rewind();
                    }
                    return () -> assignor.assign(counts, subscriptions);
                });
                if (event.equals("first")) first = result;
            }
        }

        void uniform(int repeat, boolean print) {
            Map<String, Uuid> ids = new HashMap<>();
            Map<Uuid, Integer> sizes = new HashMap<>();
            for (String topic : topics) {
                Uuid id = new Uuid(1, topics.indexOf(topic) + 1L);
                ids.put(topic, id);
                sizes.put(id, counts.get(topic));
            }
            SubscribedTopicDescriber describer = new SubscribedTopicDescriber() {
                public int numPartitions(Uuid topic) {
                    return sizes.getOrDefault(topic, -1);
                }

                public Set<String> racksForPartition(Uuid topic, int partition) {
                    return Set.of();
                }
            };
            SubscriptionType type =
                perMember >= topics.size() ? SubscriptionType.HOMOGENEOUS : SubscriptionType.HETEROGENEOUS;
            GroupAssignment first = null;
            for (String event : EVENTS) {
                Map<String, List<String>> now = event.equals("first") ? reads : after(event);
                Map<String, MemberSubscriptionAndAssignmentImpl> members = new HashMap<>();
                Map<Uuid, Map<Integer, String>> owners = new HashMap<>();
                for (Map.Entry<String, List<String>> member : now.entrySet()) {
                    Map<Uuid, Set<Integer>> owned = first == null || !first.members().containsKey(member.getKey())
                        ? Map.of() : first.members().get(member.getKey()).partitions();
                    Set<Uuid> subscribed = new HashSet<>();
                    for (String topic : member.getValue()) subscribed.add(ids.get(topic));
                    members.put(member.getKey(), new MemberSubscriptionAndAssignmentImpl(Optional.empty(),
                        Optional.empty(), subscribed,
                        new org.apache.kafka.coordinator.group.modern.Assignment(owned)));
                    owned.forEach((topic, held) -> {
                        for (int p : held) owners.computeIfAbsent(topic, t -> new HashMap<>()).put(p, member.getKey());
                    });
                }
                GroupAssignment result = timed("UniformAssignor", event, repeat, print,
                    () -> () -> new UniformAssignor().assign(new GroupSpecImpl(members, type, owners), describer));
                if (event.equals("first")) first = result;
            }
        }
    }
}
