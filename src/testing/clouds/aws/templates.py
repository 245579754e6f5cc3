"""Launch templates with their versions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from .call import CloudCall
from .filters import TAGS, chosen, launch_tags, page, tag_list
from .moto import ACCOUNT
from .protocol import Answer, Ask, EC2Error
from .state import Region, Template
from .tokens import once


@once
def create_launch_template(call: CloudCall) -> Answer:
    region, name = call.region, call.ask["LaunchTemplateName"]
    if any(each.name == name for each in region.templates.all()):
        words = "Launch template name already in use."
        raise EC2Error("InvalidLaunchTemplateName.AlreadyExistsException", words)
    template = Template(
        id=region.state.new_id("lt"),
        name=name,
        created=region.state.clock.now(),
        tags=launch_tags(call.ask, "launch-template"),
        versions=(call.ask.get("LaunchTemplateData") or {},),
    )
    region.templates.put(template.id, template)
    return {"LaunchTemplate": _rendered(call, template)}


@once
def create_launch_template_version(call: CloudCall) -> Answer:
    template, source = find(call.region, call.ask, call.ago), call.ask.get("SourceVersion")
    base = template.versions[_number(template, source) - 1] if source else {}
    versions = (*template.versions, {**base, **(call.ask.get("LaunchTemplateData") or {})})
    template = replace(template, versions=versions)
    call.region.templates.put(template.id, template)
    return {"LaunchTemplateVersion": _version(call, template, len(versions))}


def modify_launch_template(call: CloudCall) -> Answer:
    template = find(call.region, call.ask, call.ago)
    template = replace(template, default=_number(template, call.ask.get("DefaultVersion") or "$Default"))
    call.region.templates.put(template.id, template)
    return {"LaunchTemplate": _rendered(call, template)}


def delete_launch_template(call: CloudCall) -> Answer:
    template = find(call.region, call.ask, call.ago)
    call.region.templates.put(template.id, None)
    return {"LaunchTemplate": _rendered(call, template)}


def describe_launch_templates(call: CloudCall) -> Answer:
    templates = call.region.templates.all(call.ago)
    for key, attribute in (("LaunchTemplateIds", "id"), ("LaunchTemplateNames", "name")):
        wanted = call.ask.get(key)
        if wanted:
            for each in wanted:
                if each not in [getattr(template, attribute) for template in templates]:
                    raise _unknown(**{attribute: each})
            templates = [template for template in templates if getattr(template, attribute) in wanted]
    fitting = chosen(templates, call.ask.get("Filters"), {"launch-template-name": lambda it: [it.name]}, TAGS)
    shown, following = page(fitting, call.ask, most=200)
    return {"LaunchTemplates": [_rendered(call, each) for each in shown], "NextToken": following}


def describe_launch_template_versions(call: CloudCall) -> Answer:
    template = find(call.region, call.ask, call.ago)
    numbers = [_number(template, each) for each in call.ask.get("Versions") or ()]
    numbers = numbers or list(range(len(template.versions), 0, -1))
    shown, following = page(numbers, call.ask, most=200)
    return {
        "LaunchTemplateVersions": [_version(call, template, number) for number in shown],
        "NextToken": following,
    }


def find(region: Region, named: Mapping[str, Any], ago: float = 0.0) -> Template:
    """Find a template by LaunchTemplateId or LaunchTemplateName.

    Raises:
        EC2Error: There is no such template.
    """
    template_id, name = named.get("LaunchTemplateId"), named.get("LaunchTemplateName")
    for template in region.templates.all(ago):
        if (template.id == template_id) if template_id else (template.name == name):
            return template
    raise _unknown(template_id, name)


def data(region: Region, named: Mapping[str, Any] | None, ago: float = 0.0) -> Ask:
    """Return the contents of the named version of a template; empty if no template is named."""
    if not named:
        return Ask()
    template = find(region, named, ago)
    return Ask(template.versions[_number(template, named.get("Version") or "$Default") - 1])


def _number(template: Template, version: str) -> int:
    number = {"$Default": template.default, "$Latest": len(template.versions)}.get(version)
    if number is None:
        number = int(version) if version.isdecimal() else 0
    if not 0 < number <= len(template.versions):
        words = f"Could not find the specified version {version} for the launch template with ID {template.id}."
        raise EC2Error("InvalidLaunchTemplateId.VersionNotFound", words)
    return number


def _unknown(id: str | None = None, name: str | None = None) -> EC2Error:  # noqa: A002 - the attribute's name
    if id:
        words = f"The specified launch template, with template ID {id}, does not exist."
        return EC2Error("InvalidLaunchTemplateId.NotFound", words)
    words = f"The specified launch template, with template name {name}, does not exist."
    return EC2Error("InvalidLaunchTemplateName.NotFoundException", words)


def _rendered(call: CloudCall, template: Template) -> Answer:
    return {
        "LaunchTemplateId": template.id,
        "LaunchTemplateName": template.name,
        "CreateTime": call.region.state.clock.date(template.created),
        "CreatedBy": f"arn:aws:iam::{ACCOUNT}:root",
        "DefaultVersionNumber": template.default,
        "LatestVersionNumber": len(template.versions),
        "Tags": tag_list(template.tags),
    }


def _version(call: CloudCall, template: Template, number: int) -> Answer:
    return {
        "LaunchTemplateId": template.id,
        "LaunchTemplateName": template.name,
        "VersionNumber": number,
        "CreateTime": call.region.state.clock.date(template.created),
        "CreatedBy": f"arn:aws:iam::{ACCOUNT}:root",
        "DefaultVersion": number == template.default,
        "LaunchTemplateData": template.versions[number - 1],
    }


ACTIONS = {
    "CreateLaunchTemplate": create_launch_template,
    "CreateLaunchTemplateVersion": create_launch_template_version,
    "DeleteLaunchTemplate": delete_launch_template,
    "DescribeLaunchTemplateVersions": describe_launch_template_versions,
    "DescribeLaunchTemplates": describe_launch_templates,
    "ModifyLaunchTemplate": modify_launch_template,
}
