// The admin calls that are about groups.

import com.fasterxml.jackson.databind.JsonNode;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.kafka.clients.admin.ConsumerGroupDescription;
import org.apache.kafka.clients.admin.GroupListing;
import org.apache.kafka.clients.admin.ListGroupsOptions;
import org.apache.kafka.clients.admin.MemberDescription;
import org.apache.kafka.common.GroupState;
import org.apache.kafka.common.TopicPartition;

final class GroupAdmin {
    private GroupAdmin() {}

    static void enter(Map<String, Lines.Order> orders) {
        orders.put("list_groups", GroupAdmin::list);
        orders.put("describe_group", GroupAdmin::describe);
        orders.put("delete_group", GroupAdmin::delete);
        orders.put("group_offsets", GroupAdmin::offsets);
        orders.put("set_group_offsets", GroupAdmin::setOffsets);
        orders.put("delete_group_offsets", GroupAdmin::deleteOffsets);
    }

    private static String group(JsonNode order) {
        return order.get("group").asText();
    }

    private static Object list(JsonNode order) throws Exception {
        Map<String, Object> told = new HashMap<>();
        ListGroupsOptions wanted = ListGroupsOptions.forConsumerGroups();
        for (GroupListing group : Topics.admin(order).listGroups(wanted).all().get()) {
            told.put(group.groupId(), group.groupState().map(GroupState::toString).orElse(null));
        }
        return told;
    }

    private static Object describe(JsonNode order) throws Exception {
        String group = group(order);
        ConsumerGroupDescription described =
            Topics.admin(order).describeConsumerGroups(List.of(group)).all().get().get(group);
        List<Object> members = new ArrayList<>();
        for (MemberDescription member : described.members()) {
            Map<String, Object> told = new HashMap<>();
            told.put("id", member.consumerId());
            told.put("client_id", member.clientId());
            told.put("host", member.host());
            told.put("instance", member.groupInstanceId().orElse(null));
            told.put("assigned", Groups.told(member.assignment().topicPartitions()));
            members.add(told);
        }
        return Map.of(
            "state", described.groupState().toString(),
            "protocol", described.partitionAssignor(),
            "members", members);
    }

    private static Object delete(JsonNode order) throws Exception {
        Topics.admin(order).deleteConsumerGroups(List.of(group(order))).all().get();
        return null;
    }

    private static Object offsets(JsonNode order) throws Exception {
        List<Object> lines = new ArrayList<>();
        Topics.admin(order).listConsumerGroupOffsets(group(order))
            .partitionsToOffsetAndMetadata().get()
            .forEach((place, at) -> lines.add(
                List.of(place.topic(), place.partition(), at.offset(), at.metadata())));
        return lines;
    }

    private static Object setOffsets(JsonNode order) throws Exception {
        Topics.admin(order)
            .alterConsumerGroupOffsets(group(order), Groups.offsets(order.get("offsets")))
            .all().get();
        return null;
    }

    private static Object deleteOffsets(JsonNode order) throws Exception {
        Set<TopicPartition> places = new HashSet<>();
        for (JsonNode place : order.get("partitions")) {
            places.add(new TopicPartition(place.get(0).asText(), place.get(1).asInt()));
        }
        Topics.admin(order).deleteConsumerGroupOffsets(group(order), places).all().get();
        return null;
    }
}
