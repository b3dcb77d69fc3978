"""Which stacks there are and what they pass to each other."""

import aws_cdk as cdk
from cdk_nag import AwsSolutionsChecks

from stacks.api import ApiStack
from stacks.data import DataStack
from stacks.jobs import JobsStack
from stacks.monitoring import MonitoringStack
from stacks.settings import Settings
from stacks.streams import StreamsStack


# cdk.json makes references between stacks strong, against CDK's recommendation: with weak ones the command line skips a
# consumer whose template did not change, and an alarm or a function would go on using a name that is gone.
def compose(app: cdk.App, settings: Settings) -> None:
    """Adds every stack of one environment. No stack names an account or a region: synth asks AWS nothing."""
    data = DataStack(app, settings.stack_name("Data"), settings=settings)
    api = ApiStack(
        app,
        settings.stack_name("Api"),
        settings=settings,
        table=data.table,
        key=data.key,
        secrets=data.secrets,
    )
    jobs = JobsStack(app, settings.stack_name("Jobs"), settings=settings, data=data)
    streams = StreamsStack(app, settings.stack_name("Streams"), settings=settings, data=data)
    MonitoringStack(
        app,
        settings.stack_name("Monitoring"),
        settings=settings,
        table=data.table,
        api=api,
        jobs=jobs,
        streams=streams,
    )
    cdk.Tags.of(app).add("sluice:environment", settings.name)
    cdk.Validations.of(app).add_plugins(AwsSolutionsChecks(app))
