// The admin calls that are about topics, nodes and configuration.

import com.fasterxml.jackson.databind.JsonNode;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.CreateTopicsOptions;
import org.apache.kafka.clients.admin.DescribeClusterResult;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.admin.TopicDescription;
import org.apache.kafka.common.Node;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.TopicPartitionInfo;
import org.apache.kafka.common.config.ConfigResource;

final class Topics {
    private static final Map<String, OffsetSpec> OFFSETS = Map.of(
        "earliest", OffsetSpec.earliest(),
        "latest", OffsetSpec.latest(),
        "youngest", OffsetSpec.maxTimestamp());
    private static String address = "";
    private static Admin admin;

    private Topics() {}

    static void enter(Map<String, Lines.Order> orders) {
        orders.put("create_topic", Topics::create);
        orders.put("delete_topic", Topics::delete);
        orders.put("grow_topic", Topics::grow);
        orders.put("list_topics", Topics::list);
        orders.put("describe_topic", Topics::describe);
        orders.put("delete_records", Topics::deleteRecords);
        orders.put("offset", Topics::offset);
        orders.put("describe_cluster", Topics::cluster);
        orders.put("describe_config", Topics::config);
        orders.put("alter_config", Topics::alter);
    }

    /** One client for as long as the address stays the same. */
    static Admin admin(JsonNode order) {
        String bootstrap = order.get("bootstrap").asText();
        if (!bootstrap.equals(address)) {
            if (admin != null) {
                admin.close();
            }
            admin = Admin.create(Settings.quick(order));
            address = bootstrap;
        }
        return admin;
    }

    private static Object create(JsonNode order) throws Exception {
        int partitions = order.path("partitions").asInt(1);
        short replicas = (short) order.path("replicas").asInt(1);
        Map<String, String> config = new HashMap<>();
        order.path("config").properties().forEach(
            entry -> config.put(entry.getKey(), entry.getValue().asText()));
        NewTopic topic = new NewTopic(order.get("name").asText(), partitions, replicas);
        CreateTopicsOptions options = new CreateTopicsOptions();
        options.validateOnly(order.path("trial").asBoolean(false));
        admin(order).createTopics(List.of(topic.configs(config)), options).all().get();
        return null;
    }

    private static Object delete(JsonNode order) throws Exception {
        admin(order).deleteTopics(List.of(order.get("name").asText())).all().get();
        return null;
    }

    private static Object grow(JsonNode order) throws Exception {
        NewPartitions wider = NewPartitions.increaseTo(order.get("partitions").asInt());
        admin(order).createPartitions(Map.of(order.get("name").asText(), wider)).all().get();
        return null;
    }

    private static Object list(JsonNode order) throws Exception {
        return admin(order).listTopics().names().get();
    }

    private static Object describe(JsonNode order) throws Exception {
        String name = order.get("name").asText();
        TopicDescription topic =
            admin(order).describeTopics(List.of(name)).allTopicNames().get().get(name);
        List<Object> partitions = new ArrayList<>();
        for (TopicPartitionInfo partition : topic.partitions()) {
            partitions.add(Map.of(
                "id", partition.partition(),
                "leader", partition.leader().id(),
                "replicas", ids(partition.replicas()),
                "isr", ids(partition.isr())));
        }
        return Map.of("internal", topic.isInternal(), "partitions", partitions);
    }

    private static List<Object> ids(Collection<Node> nodes) {
        List<Object> ids = new ArrayList<>();
        nodes.forEach(node -> ids.add(node.id()));
        return ids;
    }

    private static TopicPartition place(JsonNode order) {
        return new TopicPartition(order.get("topic").asText(), order.get("partition").asInt());
    }

    private static Object deleteRecords(JsonNode order) throws Exception {
        RecordsToDelete older = RecordsToDelete.beforeOffset(order.get("before").asLong());
        admin(order).deleteRecords(Map.of(place(order), older)).all().get();
        return null;
    }

    private static Object offset(JsonNode order) throws Exception {
        JsonNode at = order.get("at");
        OffsetSpec spec =
            at.isNumber() ? OffsetSpec.forTimestamp(at.asLong()) : OFFSETS.get(at.asText());
        TopicPartition place = place(order);
        return admin(order).listOffsets(Map.of(place, spec)).partitionResult(place).get().offset();
    }

    private static Object cluster(JsonNode order) throws Exception {
        DescribeClusterResult cluster = admin(order).describeCluster();
        return Map.of(
            "id", cluster.clusterId().get(),
            "controller", cluster.controller().get().id(),
            "nodes", ids(cluster.nodes().get()));
    }

    private static ConfigResource resource(JsonNode order) {
        String kind = order.get("kind").asText().toUpperCase();
        return new ConfigResource(
            ConfigResource.Type.valueOf(kind), order.get("name").asText());
    }

    private static Object config(JsonNode order) throws Exception {
        ConfigResource resource = resource(order);
        Map<String, Object> told = new HashMap<>();
        for (ConfigEntry entry :
                admin(order).describeConfigs(List.of(resource)).all().get().get(resource).entries()) {
            told.put(entry.name(), Arrays.asList(entry.value(), entry.isDefault()));
        }
        return told;
    }

    private static Object alter(JsonNode order) throws Exception {
        List<AlterConfigOp> changes = new ArrayList<>();
        order.get("changes").properties().forEach(change -> {
            JsonNode value = change.getValue();
            ConfigEntry entry =
                new ConfigEntry(change.getKey(), value.isNull() ? null : value.asText());
            changes.add(new AlterConfigOp(
                entry,
                value.isNull() ? AlterConfigOp.OpType.DELETE : AlterConfigOp.OpType.SET));
        });
        admin(order).incrementalAlterConfigs(Map.of(resource(order), changes)).all().get();
        return null;
    }
}
