"""Explanations of the error codes in messages, with remedies: the text of ``dl4j explain``."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["EXPLANATIONS", "Explanation"]


@dataclass(frozen=True, slots=True)
class Explanation:
    """The explanation of an error code.

    Attributes:
        code: such as ``DL4J-TRACKER``.
        exit_status: of a command that ends with the code; None: the code is for a failed job, and ends no command.
        means: what has happened, in a sentence or two.
        remedies: the usual causes, each with a remedy.
    """

    code: str
    exit_status: int | None
    means: str
    remedies: tuple[tuple[str, str], ...]


EXPLANATIONS = (
    Explanation(
        "DL4J-AUTH",
        6,
        "Somebody does not carry the run's secret, or carries another one; or a server was to listen beyond this "
        "machine without any.",
        (
            ("DL4J_SECRET_FILE names another file here than there", "copy the file of the master's machine, mode 600"),
            ("there is no secret yet", "make one on one machine, as docs/several-machines.md shows, and copy it"),
            (
                "the grid was filled by somebody else",
                "use a cluster name of your own (--cluster-name), or remove what lies there: dl4j runs --clean",
            ),
        ),
    ),
    Explanation(
        "DL4J-CAPTURE",
        1,
        "A training step cannot become a CUDA graph. Training goes on launch by launch, more slowly; the message says "
        "which layer is in the way.",
        (("a layer allocates memory in each step", "nothing has to be done; the results are the same"),),
    ),
    Explanation(
        "DL4J-CHECKPOINT",
        8,
        "There is no usable checkpoint, or the folder belongs to another run, or another process writes to it.",
        (
            (
                "the folder holds checkpoints of another run",
                "choose an empty --checkpoint-dir, or dl4j resume that run",
            ),
            ("another process is at work there", "the message has its host and process number; end that, or wait"),
            (
                "the data are others than those the run began with",
                "give it the data of then; their fingerprints differ",
            ),
        ),
    ),
    Explanation(
        "DL4J-CLOSED",
        4,
        "The connection to the state tracker was shut down while it was in use.",
        (("this process was ending", "what it had committed counts; dl4j resume RUN goes on with the rest"),),
    ),
    Explanation(
        "DL4J-CLOUD",
        4,
        "The cloud provider cannot be reached, or refused what it was asked.",
        (
            ("credentials are missing or have expired", "aws sts get-caller-identity says whose they are"),
            ("a right is missing", "docs/aws-permissions.md has the policy with all that are needed"),
            ("a quota is used up", "the message names it; ask for more, or choose another instance type or region"),
        ),
    ),
    Explanation(
        "DL4J-COLLAPSED",
        13,
        "A training ended with a model that gives one answer for everything, although the data have a pattern, or with "
        "a score far above that of the start. The report says which; the model is saved where --out says.",
        (
            ("the rate of learning is too large", "take a tenth of it, or another --updater"),
            ("units died at the start", "another --seed, or another network"),
            ("the data are not scaled, or have huge values", "see dl4j data validate FILE"),
        ),
    ),
    Explanation(
        "DL4J-CONF",
        3,
        "A configuration is invalid: an unknown field, a value out of range, or two that contradict each other. "
        "Nothing has begun.",
        (
            ("a name is misspelt", "the message has the nearest one that there is"),
            ("a value is out of range", "the message has the range; dl4j summary CONF shows what a Conf makes"),
            ("this machine is too small for it", "make layers or batches smaller, or take fewer workers"),
        ),
    ),
    Explanation(
        "DL4J-CONTRACT",
        1,
        "A part of your own program (a router, an aggregator, a performer, an iterator) has raised an error, cannot be "
        "called as a run calls it, or returned something that no run can use. The message names class and method, the "
        "answer or the line of your program, and what the method must return.",
        (
            ("the part has a fault", "mend it and try it alone with the checks of dl4jlegacy.testing"),
            ("the run has checkpoints", "dl4j resume goes on from the last one with the mended part"),
        ),
    ),
    Explanation(
        "DL4J-DATA",
        3,
        "A data set is missing, cannot be read, or holds values that cannot be trained on. The message names file, "
        "line, column and value.",
        (
            ("cells are empty or no numbers", "dl4j data inspect FILE writes a schema that says what to do with them"),
            ("many lines may be wrong", "dl4j data validate FILE counts them, with examples"),
            ("a package is missing that reads such files", "the message has the line that installs it"),
        ),
    ),
    Explanation(
        "DL4J-DEADLINE",
        5,
        "Something did not happen in the time that there was for it. Nothing is lost: what was committed counts.",
        (
            ("a run stood still", "dl4j status and dl4j logs show since when, and what its workers do"),
            ("one batch takes longer than the limit", "give the Conf more stuck_seconds"),
            ("a server or an instance is slow to start", "try again; its log is named in the message"),
        ),
    ),
    Explanation(
        "DL4J-DEVICE",
        3,
        "A GPU was asked for that is not there, or cannot be used in this combination.",
        (
            ("no driver, or no CuPy", "dl4j bench devices says what is found; docs/gpu.md how to install it"),
            (
                "the run computes on another kind of device",
                "start the worker on such a one, or the run with "
                "--mixed-devices, whose bits then depend on the devices",
            ),
        ),
    ),
    Explanation(
        "DL4J-DOCTOR",
        11,
        "dl4j doctor has found something that does not work and without which a run with these options would not, "
        "either. The lines that begin with 'failed' say what.",
        (
            ("a library is missing, or is of another version", "./install in the clone of dl4jlegacy"),
            ("a folder is missing", "dl4j doctor --fix creates it"),
            ("several checks have failed", "mend the first: others often only follow from it"),
            ("a server that was named is not reached", "correct --tracker or --zookeeper, or leave it out"),
        ),
    ),
    Explanation(
        "DL4J-DOWNLOAD",
        4,
        "A data set is not here and cannot be downloaded now.",
        (
            ("there is no network", "copy the files here and give their folder with --data-dir or DL4J_DATA_DIR"),
            ("the server has none of that name, or is busy", "the message has its answer; try again later"),
        ),
    ),
    Explanation(
        "DL4J-INTERNAL",
        70,
        "This is a bug in dl4jlegacy; the traceback is on stderr.",
        (("a case that nobody has thought of", "report it, with the traceback and the command; a run can be resumed"),),
    ),
    Explanation(
        "DL4J-JOB",
        1,
        "A job failed: on every attempt, which ends the run, or always on one worker, which is set aside. The worker's "
        "traceback is printed before the message.",
        (
            (
                "the job cannot be done",
                "mend what the traceback shows, then dl4j resume RUN: the rest is not done again",
            ),
            ("it fails on one machine only", "mend that machine and start its worker again; the run goes on meanwhile"),
        ),
    ),
    Explanation(
        "DL4J-MEMORY",
        1,
        "The memory of this machine or of a GPU is full.",
        (
            ("a batch is too large", "the message has the batch size that would fit (--batch-size)"),
            ("several workers share the device", "take fewer --workers, or limit each: --device-memory-limit"),
        ),
    ),
    Explanation(
        "DL4J-MODEL",
        8,
        "A model file is missing, damaged, of another program, or cannot be written.",
        (
            ("the path is wrong", "give a .zip that dl4j train --out wrote, or a folder of checkpoints"),
            ("it comes from Deeplearning4j", "docs/dl4j-compatibility.md says which files can be read"),
            ("there is no room for it", "the run is kept; make room and dl4j resume RUN writes it again"),
        ),
    ),
    Explanation(
        "DL4J-MODEL-LOST",
        None,
        "A worker could not read the model that its job begins with. The master writes it again, and the job is done "
        "then.",
        (("a member of the grid was lost", "nothing has to be done; with one member only, start two or three"),),
    ),
    Explanation(
        "DL4J-NOTFINITE",
        13,
        "The score, the parameters or an output became NaN or infinite. No such model is kept.",
        (
            ("the rate of learning is too large", "take a tenth of it, or gradient normalization"),
            (
                "the data are not scaled, or have huge values",
                "see dl4j data validate FILE; a schema of dl4j data inspect can scale them",
            ),
            ("stale updates are added whole", '--router-args \'{"rate": "staleness"}\', or a synchronous router'),
        ),
    ),
    Explanation(
        "DL4J-OUTPUT",
        1,
        "The results cannot be written: their reader is gone, the disk is full, or the place may not be written to.",
        (
            ("the command's output went to a program that ended", "let that read to the end, or give --out FILE"),
            ("the disk is full or read-only", "choose another place; nothing half-written is left"),
        ),
    ),
    Explanation(
        "DL4J-PART",
        10,
        "The jobs of a run need a part of somebody's program, by name, that this process does not have.",
        (
            ("the worker was started without the module", "start it with --use MODULE, as the master was"),
            ("the module is not installed on this machine", "install it, or put its folder into PYTHONPATH"),
        ),
    ),
    Explanation(
        "DL4J-POISON",
        12,
        "A job kills the processes that compute it: at least three have died of it, none has finished it, and the run "
        "finished so many others meanwhile that this is no coincidence. The run ends before it costs more workers.",
        (
            (
                "its data crash a library, or need more memory than there is",
                "the message names its batches: mend them or leave them out, or take smaller batches",
            ),
            ("its batches do not matter", "dl4j resume RUN --poison-jobs set-aside goes on without them"),
            ("all of its workers are too small", "start larger ones, or fewer threads in each process"),
            ("a performer of your own has a fault", "mend it; dl4j resume RUN goes on with every job's count at 0"),
        ),
    ),
    Explanation(
        "DL4J-REPLAY",
        None,
        "A job that was done again came to another update than the first time: two workers do not compute alike.",
        (
            ("their processors or libraries differ", "use alike machines, or give the router state_every=1"),
            ("a performer's result depends on more than its job", "let it depend on the job and the model alone"),
        ),
    ),
    Explanation(
        "DL4J-SHAPE",
        3,
        "Two sizes that must agree do not; the message has both.",
        (
            ("the data have other columns than the model was trained on", "check --label and the schema"),
            ("layers do not fit each other", "dl4j summary CONF shows what each takes and gives"),
        ),
    ),
    Explanation(
        "DL4J-SIGHUP",
        129,
        "The terminal was closed. Whatever was committed counts.",
        (("the connection to the machine ended", "start it with nohup or in tmux; dl4j resume RUN goes on"),),
    ),
    Explanation(
        "DL4J-SIGINT",
        130,
        "Somebody pressed Ctrl-C. Whatever was committed counts; the message says how to go on.",
        (("it was meant", "dl4j resume RUN goes on from there"),),
    ),
    Explanation(
        "DL4J-SIGTERM",
        143,
        "Somebody ended the process, such as the system when it shuts down. Whatever was committed counts.",
        (("it was meant", "dl4j resume RUN goes on from there; a worker is simply started again"),),
    ),
    Explanation(
        "DL4J-TRACKER",
        4,
        "The state tracker (Hazelcast) or Zookeeper cannot be reached, or refused an operation.",
        (
            ("the servers do not run", "dl4j services up starts both on this machine; dl4j services status shows them"),
            ("the address is another one", "give --tracker and --zookeeper as dl4j services up has printed them"),
            ("a firewall is between", "docs/ports.md lists the ports"),
            ("there is no such run, or its master is gone", "dl4j runs lists what there is; dl4j resume RUN goes on"),
        ),
    ),
    Explanation(
        "DL4J-TRAINING",
        1,
        "Training ended without a model; the message says why.",
        (("the run was stopped", "dl4j export DIR makes a model of its newest checkpoint"),),
    ),
    Explanation(
        "DL4J-UPDATE-LOST",
        None,
        "A worker that folds updates could not read one of them. The job of that update is done again.",
        (("a member of the grid was lost", "nothing has to be done; with one member only, start two or three"),),
    ),
    Explanation(
        "DL4J-UPDATE-UNFIT",
        None,
        "An update does not fit the model: it has other arrays, claims more elements, or does not decode. It never "
        "reaches the model, and counts as a failure of its worker.",
        (
            ("its worker runs another version or program", "start it again with the master's"),
            ("a performer returns something else", "return the parameters that Result describes"),
        ),
    ),
    Explanation(
        "DL4J-USAGE",
        2,
        "The command line asks for something that there is not, or that cannot be combined. Nothing has begun.",
        (("an option is misspelt or missing", "dl4j COMMAND --help lists them; variables DL4J_... count as options"),),
    ),
    Explanation(
        "DL4J-VERSION",
        9,
        "Two parties of a run differ in what must agree: the package, the formats, the arithmetic of their processors.",
        (
            ("another version is installed", "install the master's version here; the message has both"),
            ("the machines' processors differ", "use alike machines, or --mixed-devices, whose bits depend on them"),
            ("the run's Conf was changed", "end the run, and start it anew with the new Conf"),
        ),
    ),
    Explanation(
        "DL4J-WIRE",
        1,
        "A frame is cut short, damaged, of an unknown version, or not a frame at all. It is refused, never guessed.",
        (
            ("a file or an object was damaged", "use an earlier checkpoint, or the copy that you have"),
            ("somebody else writes to the grid", "set a secret, and a cluster name of your own"),
        ),
    ),
    Explanation(
        "DL4J-WORKERS",
        7,
        "There were fewer workers than the run needs, for too long.",
        (
            ("workers have ended", "start some (dl4j worker --zookeeper ...), then dl4j resume RUN"),
            ("the run asks for too many", "resume it with a smaller --min-workers, or wait longer: --worker-wait"),
        ),
    ),
)
