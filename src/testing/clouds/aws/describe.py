"""Describe calls for instances, their volumes and their spot requests."""

from __future__ import annotations

import re
from collections.abc import Sequence

from .call import CloudCall
from .filters import TAGS, Facts, chosen, page, tag_list
from .instances import CODES, Instance, SpotRequest, Volume
from .moto import ACCOUNT
from .protocol import Answer, EC2Error
from .state import Region


def describe_instances(call: CloudCall) -> Answer:
    ids = call.ask.get("InstanceIds") or []
    if ids and call.ask.get("MaxResults"):
        words = "The parameter instancesSet cannot be used with the parameter maxResults"
        raise EC2Error("InvalidParameterCombination", words)
    instances = named(call, ids) if ids else call.region.instances.all(call.ago)
    fitting = chosen(instances, call.ask.get("Filters"), _FACTS, TAGS)
    shown, following = page(fitting, call.ask)
    by_reservation: dict[str, list[Instance]] = {}
    for each in shown:
        by_reservation.setdefault(each.reservation, []).append(each)
    return {
        "Reservations": [reservation(each, call.region) for each in by_reservation.values()],
        "NextToken": following,
    }


def describe_instance_status(call: CloudCall) -> Answer:
    ids = call.ask.get("InstanceIds") or []
    instances = named(call, ids) if ids else call.region.instances.all(call.ago)
    if not call.ask.get("IncludeAllInstances"):
        instances = [each for each in instances if each.state == "running"]
    shown, following = page(chosen(instances, call.ask.get("Filters"), _FACTS, TAGS), call.ask)
    return {"InstanceStatuses": [_status(each) for each in shown], "NextToken": following}


def describe_volumes(call: CloudCall) -> Answer:
    volumes, ids = call.region.volumes.all(call.ago), call.ask.get("VolumeIds") or []
    for wanted in ids:
        if wanted not in [each.id for each in volumes]:
            raise EC2Error("InvalidVolume.NotFound", f"The volume '{wanted}' does not exist.")
    volumes = [each for each in volumes if not ids or each.id in ids]
    shown, following = page(chosen(volumes, call.ask.get("Filters"), _VOLUME_FACTS, TAGS), call.ask)
    return {"Volumes": [_volume(call.region, each) for each in shown], "NextToken": following}


def describe_spot_instance_requests(call: CloudCall) -> Answer:
    requests, ids = call.region.spot_requests.all(call.ago), call.ask.get("SpotInstanceRequestIds") or []
    for wanted in ids:
        if wanted not in [each.id for each in requests]:
            raise unknown_spot_request(wanted)
    requests = [each for each in requests if not ids or each.id in ids]
    shown, following = page(chosen(requests, call.ask.get("Filters"), _SPOT_FACTS, TAGS), call.ask)
    return {"SpotInstanceRequests": [_spot_request(call.region, each) for each in shown], "NextToken": following}


def named(call: CloudCall, ids: Sequence[str]) -> list[Instance]:
    """Return the instances with these ids, as this call sees them.

    Raises:
        EC2Error: One of them does not exist.
    """
    instances, missing = list[Instance](), list[str]()
    for malformed in (each for each in ids if not re.fullmatch(r"i-[0-9a-f]{8,17}", each)):
        raise EC2Error("InvalidInstanceID.Malformed", f'Invalid id: "{malformed}"')
    for instance_id in dict.fromkeys(ids):
        instance = call.region.instances.get(instance_id, call.ago)
        if instance is None:
            missing.append(instance_id)
        else:
            instances.append(instance)
    if len(missing) == 1:
        raise EC2Error("InvalidInstanceID.NotFound", f"The instance ID '{missing[0]}' does not exist")
    if missing:
        raise EC2Error("InvalidInstanceID.NotFound", f"The instance IDs '{', '.join(missing)}' do not exist")
    return instances


def unknown_spot_request(name: str) -> EC2Error:
    words = f"The spot instance request ID '{name}' does not exist"
    return EC2Error("InvalidSpotInstanceRequestID.NotFound", words)


def reservation(instances: Sequence[Instance], region: Region) -> Answer:
    return {
        "ReservationId": instances[0].reservation,
        "OwnerId": ACCOUNT,
        "Groups": [],
        "Instances": [_instance(each, region) for each in instances],
    }


def state(name: str) -> Answer:
    return {"Code": CODES[name], "Name": name}


# --- helpers ----------------------------------------------------------------------------------------------------------


def _instance(it: Instance, region: Region) -> Answer:
    """Render an instance; a terminated one has no network any more."""
    here = it.state != "terminated"
    clock = region.state.clock
    groups = [{"GroupId": group, "GroupName": name} for group, name in it.groups]
    options = {"State": "applied", "HttpTokens": "optional", "HttpPutResponseHopLimit": 1, "HttpEndpoint": "enabled"}
    return {
        "InstanceId": it.id,
        "ImageId": it.image,
        "State": state(it.state),
        "PrivateDnsName": f"ip-{it.private_ip.replace('.', '-')}.ec2.internal" if here else "",
        "PublicDnsName": f"ec2-{it.public_ip.replace('.', '-')}.compute-1.amazonaws.com" if it.public_ip else "",
        "StateTransitionReason": it.transition,
        "KeyName": it.key_name,
        "AmiLaunchIndex": it.index,
        "InstanceType": it.type,
        "LaunchTime": clock.date(it.launched),
        "Placement": {"AvailabilityZone": it.zone, "GroupName": it.placement_group or "", "Tenancy": "default"},
        "Monitoring": {"State": "disabled"},
        "SubnetId": it.subnet if here else None,
        "VpcId": it.vpc if here else None,
        "PrivateIpAddress": it.private_ip if here else None,
        "PublicIpAddress": it.public_ip,
        "Architecture": it.architecture,
        "RootDeviceType": "ebs",
        "RootDeviceName": it.root_device,
        "BlockDeviceMappings": [_attached(region, device, name) for device, name in it.volumes if here],
        "ClientToken": it.token,
        "InstanceLifecycle": "spot" if it.market == "spot" else None,
        "SpotInstanceRequestId": it.spot_request,
        "IamInstanceProfile": {"Arn": it.profile} if it.profile else None,
        "SecurityGroups": groups if here else [],
        "SourceDestCheck": True,
        "StateReason": {"Code": it.reason[0], "Message": it.reason[1]} if it.reason else None,
        "Tags": tag_list(it.tags),
        "MetadataOptions": {**options, **it.metadata_options},
        "VirtualizationType": "hvm",
        "Hypervisor": "xen",
        "EbsOptimized": False,
    }


def _attached(region: Region, device: str, name: str) -> Answer:
    volume = region.volumes.get(name)
    return {
        "DeviceName": device,
        "Ebs": {
            "VolumeId": name,
            "Status": "attached",
            "DeleteOnTermination": volume is None or volume.delete_with_instance,
        },
    }


_FACTS: Facts[Instance] = {
    "architecture": lambda it: [it.architecture],
    "availability-zone": lambda it: [it.zone],
    "client-token": lambda it: [it.token],
    "dns-name": lambda _: [],
    "image-id": lambda it: [it.image],
    "instance-id": lambda it: [it.id],
    "instance-lifecycle": lambda it: ["spot"] if it.market == "spot" else [],
    "instance-state-code": lambda it: [str(CODES[it.state])],
    "instance-state-name": lambda it: [it.state],
    "instance-type": lambda it: [it.type],
    "instance.group-id": lambda it: [group for group, _ in it.groups],
    "instance.group-name": lambda it: [name for _, name in it.groups],
    "ip-address": lambda it: [it.public_ip] if it.public_ip else [],
    "key-name": lambda it: [it.key_name] if it.key_name else [],
    "network-interface.group-id": lambda it: [group for group, _ in it.groups],
    "placement-group-name": lambda it: [it.placement_group] if it.placement_group else [],
    "private-ip-address": lambda it: [it.private_ip],
    "reservation-id": lambda it: [it.reservation],
    "spot-instance-request-id": lambda it: [it.spot_request] if it.spot_request else [],
    "state-reason-code": lambda it: [it.reason[0]] if it.reason else [],
    "subnet-id": lambda it: [it.subnet],
    "vpc-id": lambda it: [it.vpc],
}


def _status(it: Instance) -> Answer:
    ok = {"Status": "ok" if it.state == "running" else "not-applicable"}
    return {
        "InstanceId": it.id,
        "AvailabilityZone": it.zone,
        "InstanceState": state(it.state),
        "InstanceStatus": ok,
        "SystemStatus": ok,
    }


def _volume(region: Region, it: Volume) -> Answer:
    attached = {
        "InstanceId": it.instance,
        "VolumeId": it.id,
        "Device": it.device,
        "State": "attached",
        "DeleteOnTermination": it.delete_with_instance,
        "AttachTime": region.state.clock.date(it.created),
    }
    return {
        "VolumeId": it.id,
        "State": "in-use" if it.instance else "available",
        "Size": it.size_gb,
        "VolumeType": it.kind,
        "Encrypted": it.encrypted,
        "AvailabilityZone": it.zone,
        "CreateTime": region.state.clock.date(it.created),
        "Attachments": [attached] if it.instance else [],
        "Tags": tag_list(it.tags),
    }


_VOLUME_FACTS: Facts[Volume] = {
    "attachment.instance-id": lambda it: [it.instance] if it.instance else [],
    "availability-zone": lambda it: [it.zone],
    "encrypted": lambda it: [str(it.encrypted).lower()],
    "size": lambda it: [str(it.size_gb)],
    "status": lambda it: ["in-use" if it.instance else "available"],
    "volume-id": lambda it: [it.id],
    "volume-type": lambda it: [it.kind],
}


def _spot_request(region: Region, it: SpotRequest) -> Answer:
    date = region.state.clock.date(it.created)
    return {
        "SpotInstanceRequestId": it.id,
        "InstanceId": it.instance,
        "State": it.state,
        "Status": {"Code": it.status, "Message": it.status, "UpdateTime": date},
        "Type": "one-time",
        "CreateTime": date,
        "LaunchedAvailabilityZone": it.zone,
        "LaunchSpecification": {"InstanceType": it.type},
        "InstanceInterruptionBehavior": "terminate",
        "Tags": tag_list(it.tags),
    }


_SPOT_FACTS: Facts[SpotRequest] = {
    "instance-id": lambda it: [it.instance],
    "spot-instance-request-id": lambda it: [it.id],
    "state": lambda it: [it.state],
    "status-code": lambda it: [it.status],
    "launched-availability-zone": lambda it: [it.zone],
}


ACTIONS = {
    "DescribeInstanceStatus": describe_instance_status,
    "DescribeInstances": describe_instances,
    "DescribeSpotInstanceRequests": describe_spot_instance_requests,
    "DescribeVolumes": describe_volumes,
}
