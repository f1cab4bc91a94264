package cluster

import (
	"context"
	"time"
)

// Notice tells of a run to who is not there to watch it.
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
	Host    string      `json:"host"`           // that recast runs on
	User    string      `json:"user"`           // who runs it there; the notifier knows
	Text    string      `json:"text"`           // all of it on a line
}

// NoticeEvent is what a notice is sent for.
type NoticeEvent string

// The events of a run. At its end a run sends one notice: NoticeFailure unless it is done.
const (
	NoticeStart   NoticeEvent = "start"
	NoticeFailure NoticeEvent = "failure"
	NoticeEnd     NoticeEvent = "end"
)

// Fates are the nodes of a run by what has become of them, each list sorted.
type Fates struct {
	Done   []string `json:"done"`
	Failed []string `json:"failed"`
	Left   []string `json:"left"` // not come to, or stopped on the way
}

// Notifier sends notices. Its error names each that did not arrive, and has no secret in it.
type Notifier interface {
	Notify(ctx context.Context, n Notice) error
}
