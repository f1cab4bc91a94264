package cluster

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"strings"
	"time"

	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/wait"
)

// Took is how long one node's roll took once.
type Took struct {
	Node     string   `json:"node"`
	Role     string   `json:"role"`
	Strategy Strategy `json:"strategy"`
	Talos    string   `json:"talos,omitempty"` // version that it had before
	// OutageSeconds is from the end of its drain to when it was back.
	OutageSeconds int `json:"outageSeconds"`
	// WholeSeconds is from its gate to its end.
	WholeSeconds int            `json:"wholeSeconds"`
	Expected     int            `json:"expectedOutageSeconds,omitempty"` // as its plan had it
	Steps        map[string]int `json:"steps,omitempty"`                 // seconds of those that took any, by path below the node
}

// tookKey is the suffix of the journal's key for a node's Took.
const tookKey = "/took"

// TookKey is the journal's key for a node's Took.
func TookKey(node string) string { return node + tookKey }

// IsTookKey says whether a key of the journal is for a Took.
func IsTookKey(key string) bool { return strings.HasSuffix(key, tookKey) }

const handsOver = "hands-over/"

// HandsOver is a fact in a run's journal: a storage on a host handed a volume over from one VM to another.
type HandsOver struct {
	Host    string `json:"host"`
	Storage string `json:"storage"`
}

// Key is the key of the fact in a journal.
func (h HandsOver) Key() string {
	sum := sha256.Sum256([]byte(h.Host + "/" + h.Storage))
	return handsOver + hex.EncodeToString(sum[:6])
}

// IsHandsOverKey says whether a key of the journal is for a HandsOver.
func IsHandsOverKey(key string) bool { return strings.HasPrefix(key, handsOver) }

// Notice tells someone who does not watch the run about it.
type Notice struct {
	Event   NoticeEvent `json:"event"`
	Command string      `json:"command"` // "roll"
	Cluster string      `json:"cluster"`
	Run     string      `json:"run"`     // "" where it ended before it changed anything
	Outcome string      `json:"outcome"` // "done", "failed" or "interrupted"; "" at the start
	Nodes   Fates       `json:"nodes"`
	Error   string      `json:"error"` // "" unless it failed
	Hints   []string    `json:"hints"`
	Started time.Time   `json:"started"`
	Ended   time.Time   `json:"ended,omitzero"` // zero at the start
	Host    string      `json:"host"`           // on which recast runs
	User    string      `json:"user"`           // who runs it there; the notifier knows
	Text    string      `json:"text"`           // the whole notice on one line
}

// NoticeEvent is the reason for a notice.
type NoticeEvent string

// The events of a run. At its end a run sends one notice: NoticeFailure unless it is done.
const (
	NoticeStart   NoticeEvent = "start"
	NoticeFailure NoticeEvent = "failure"
	NoticeEnd     NoticeEvent = "end"
)

// Fates lists the nodes of a run by their outcome, each list sorted.
type Fates struct {
	Done   []string `json:"done"`
	Failed []string `json:"failed"`
	Left   []string `json:"left"` // not reached, or stopped on the way
}

// Notifier sends notices. The error of Notify names each notice that did not arrive, and contains no secret.
type Notifier interface {
	Notify(ctx context.Context, n Notice) error
}

// Timing bounds the waits of a roll.
type Timing struct {
	Poll   time.Duration // pause between two reads
	Settle time.Duration // how long a node must stay healthy
	Stop   time.Duration // guest shutdown, before the VM is switched off
	Boot   time.Duration // power on to maintenance mode
	Join   time.Duration // configuration applied to healthy
	Try    time.Duration // configuration on trial to healthy
	Drain  time.Duration
	Heal   time.Duration // node back to replicated volumes whole; also how long a node waits for whole volumes before it goes
}

// rarely is the factor for the poll interval while a watch is open: a silent watch is not
// necessarily lost.
const rarely = 10

// Await calls look at the interval of t, or at the one that w has, until look is done. It stops at once if our own credentials are wrong:
// waiting does not help.
func (t Timing) Await(ctx context.Context, w wait.For, look wait.Look) error {
	w.Every, w.Watched = cmp.Or(w.Every, t.Poll), rarely*t.Poll
	return wait.Until(ctx, w, func(ctx context.Context) (bool, string, error) {
		done, seen, err := look(ctx)
		if fault.KindOf(err) == fault.Config {
			err = wait.Stop(err)
		}
		return done, seen, err
	})
}

// AwaitTasks waits until list finds no running task.
func AwaitTasks(ctx context.Context, w wait.For, list func(context.Context) ([]string, error)) error {
	return wait.Until(ctx, w, func(ctx context.Context) (bool, string, error) {
		running, err := list(ctx)
		return len(running) == 0, "running: " + strings.Join(running, ", "), wait.Stop(err)
	})
}
