import java.lang.management.ManagementFactory;
import java.lang.management.ThreadMXBean;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.NoSuchElementException;
import java.util.Optional;
import java.util.OptionalInt;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.UUID;
import java.util.function.Supplier;
import org.apache.kafka.common.Cluster;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.coordinator.group.streams.assignor.AssignmentMemberSpec;
import org.apache.kafka.coordinator.group.streams.assignor.GroupAssignment;
import org.apache.kafka.coordinator.group.streams.assignor.GroupSpecImpl;
import org.apache.kafka.coordinator.group.streams.assignor.StickyTaskAssignor;
import org.apache.kafka.coordinator.group.streams.assignor.TopologyDescriber;
import org.apache.kafka.streams.processor.TaskId;
import org.apache.kafka.streams.processor.assignment.AssignmentConfigs;
import org.apache.kafka.streams.processor.assignment.ProcessId;
import org.apache.kafka.streams.processor.internals.assignment.ClientState;
import org.apache.kafka.streams.processor.internals.assignment.HighAvailabilityTaskAssignor;
import org.apache.kafka.streams.processor.internals.assignment.RackAwareTaskAssignor;

/**
 * Times Kafka Streams' task assignor and the broker's own in a warm JVM. Each argument is clients:tasks; one line per
 * assignor and event: name clients tasks event milliseconds (median).
 */
public class TaskRivals {
    /** CPU time of the thread that assigns: other work on the machine and the collector's threads are left out. */
    static final ThreadMXBean CPU = ManagementFactory.getThreadMXBean();
    static final String[] EVENTS = {"first", "nothing", "lost", "joined"};
    static final int SUBTOPOLOGIES = 10;
    static final long FAR = 1_000_000;

    public static void main(String[] args) {
        for (String size : args) {
            int[] n = Arrays.stream(size.split(":")).mapToInt(Integer::parseInt).toArray();
            // Warm up at a small size of the same kind, so that what is timed is compiled code.
            for (long end = System.nanoTime() + 10_000_000_000L; System.nanoTime() < end; ) {
                new Group(40, 400, 1, false).all();
            }
            new Group(n[0], n[1], 25, true).all();
        }
    }

    static class Group {
        final int clients, tasks, repeat;
        final boolean print;

        Group(int clients, int tasks, int repeat, boolean print) {
            this.clients = clients;
            this.tasks = tasks;
            this.repeat = repeat;
            this.print = print;
        }

        void all() {
            streams();
            broker();
        }

        Set<Integer> after(String event) {
            Set<Integer> now = new TreeSet<>();
            for (int c = 0; c < clients; c++) now.add(c);
            if (event.equals("lost")) now.remove(7);
            if (event.equals("joined")) now.add(clients);
            return now;
        }

        <T> T timed(String name, String event, Supplier<Supplier<T>> prepare) {
            double[] took = new double[repeat];
            T result = null;
            int done = 0;
            // As often as asked, but not for more than five seconds.
            for (long end = System.nanoTime() + 5_000_000_000L; done < repeat; done++) {
                if (done > 2 && System.nanoTime() > end) break;
                Supplier<T> run = prepare.get();
                long start = CPU.getCurrentThreadCpuTime();
                result = run.get();
                took[done] = (CPU.getCurrentThreadCpuTime() - start) / 1e6;
            }
            Arrays.sort(took, 0, done);
            if (print) System.out.printf("%s %d %d %s %.3f%n", name, clients, tasks, event, took[done / 2]);
            return result;
        }

        /** The client-side assignor of Kafka Streams; owners are caught up, all others are far behind. */
        void streams() {
            AssignmentConfigs config = new AssignmentConfigs(10_000L, 2, 0, 600_000L, List.of(), OptionalInt.empty(),
                OptionalInt.empty(), "none");
            RackAwareTaskAssignor racks = new RackAwareTaskAssignor(Cluster.empty(), Map.of(), Map.of(), Map.of(),
                Map.of(), null, config, Time.SYSTEM);
            Set<TaskId> all = new TreeSet<>();
            for (int t = 0; t < tasks; t++) all.add(new TaskId(t % SUBTOPOLOGIES, t / SUBTOPOLOGIES));
            Map<ProcessId, ClientState> first = null;
            for (String event : EVENTS) {
                Map<ProcessId, ClientState> before = first;
                Map<ProcessId, ClientState> result = timed("HighAvailabilityTaskAssignor", event, () -> {
                    Map<ProcessId, ClientState> now = new TreeMap<>();
                    for (int c : after(event)) {
                        ProcessId id = new ProcessId(new UUID(0, c));
                        ClientState had = before == null ? null : before.get(id);
                        Set<TaskId> held = had == null ? Set.of() : new TreeSet<>(had.activeTasks());
                        Map<TaskId, Long> lags = new HashMap<>();
                        for (TaskId task : all) lags.put(task, held.contains(task) ? 0L : FAR);
                        now.put(id, new ClientState(held, Set.of(), lags, Map.of(), 1, id));
                    }
                    return () -> {
                        new HighAvailabilityTaskAssignor().assign(now, all, all, racks, config);
                        return now;
                    };
                });
                if (event.equals("first")) first = result;
            }
        }

        /** The broker's assignor of streams groups. */
        void broker() {
            List<String> names = new ArrayList<>();
            for (int s = 0; s < SUBTOPOLOGIES; s++) names.add("" + s);
            TopologyDescriber topology = new TopologyDescriber() {
                public List<String> subtopologies() {
                    return names;
                }

                public int maxNumInputPartitions(String subtopology) throws NoSuchElementException {
                    return tasks / SUBTOPOLOGIES;
                }

                public boolean isStateful(String subtopology) {
                    return true;
                }
            };
            GroupAssignment first = null;
            for (String event : EVENTS) {
                Map<String, AssignmentMemberSpec> members = new LinkedHashMap<>();
                for (int c : after(event)) {
                    String name = String.format("stream-%05d", c);
                    Map<String, Set<Integer>> held = first == null || !first.members().containsKey(name)
                        ? Map.of() : first.members().get(name).activeTasks();
                    members.put(name, new AssignmentMemberSpec(Optional.empty(), Optional.empty(), held, Map.of(),
                        Map.of(), name, Map.of(), Map.of(), Map.of()));
                }
                GroupAssignment result = timed("broker-StickyTaskAssignor", event, () -> () ->
                    new StickyTaskAssignor().assign(
                        new GroupSpecImpl(members, Map.of("num.standby.replicas", "0")), topology));
                if (event.equals("first")) first = result;
            }
        }
    }
}
