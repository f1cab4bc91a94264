package replica

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/foreign"
	"github.com/recast-sh/recast/internal/format"
)

// HoldReader reads which storage systems wait longer because recast told them to.
type HoldReader interface {
	// Holds lists what is held, read again on each call. A system that is not installed costs no request.
	Holds(ctx context.Context) ([]Hold, error)
	// MayHold says why recast may not tell the system to wait longer; nil: it may, or need not. The error is of kind
	// fault.Refused if a right is missing.
	MayHold(ctx context.Context, system string) error
}

// Holder tells storage systems to wait longer for the copies on a node that is away, before they make other copies on
// other nodes. The change of a setting also stores the previous value beside the setting: it can't be lost, whoever
// is killed, and every run finds it.
type Holder interface {
	// HoldRebuild tells the system (its System.Name) to wait at least that long while the run has the node away. said
	// is the change in words, "" if the system waits that long anyway. HoldRebuild may be repeated.
	HoldRebuild(ctx context.Context, system, node, run string, atLeast time.Duration) (said string, err error)
	// GiveBack ends the hold for these nodes. When the last node's hold ends, the system gets the previous value
	// back; a value that someone else has set meanwhile stays. said is the change in words, "" if nothing was held
	// for these nodes. GiveBack may be repeated.
	GiveBack(ctx context.Context, system string, nodes ...string) (said string, err error)
}

// Hold is a setting of a storage system that recast has changed, until the nodes are back.
type Hold struct {
	System  string // as of the System
	Setting string
	Now     string // its value
	Memo
	Undo string // the command that gives the previous value back by hand
}

// String says what is held, for people.
func (h Hold) String() string {
	text := fmt.Sprintf("%s: %s was %s before recast set it to %s, while %s %s away", h.System, h.Setting, cmp.Or(h.Was, "not set"), h.Set,
		strings.Join(h.For(), ", "), map[bool]string{true: "is", false: "are"}[len(h.Nodes) == 1])
	if h.Now != h.Set {
		text += fmt.Sprintf("; someone else has set it to %s since", cmp.Or(h.Now, "nothing"))
	}
	return text
}

// Memo is what recast stores beside a setting that it changes.
type Memo struct {
	Was   string         `json:"was"`            // the previous value; "": there was none
	Set   string         `json:"set"`            // the value that recast set; another value is someone else's
	Nodes map[string]int `json:"nodes"`          // what each node needs, in the setting's unit
	Run   string         `json:"run,omitempty"`  // the run that changed the setting first
	Since time.Time      `json:"since,omitzero"` // when that run changed it
}

// ParseMemo reads a memo as JSON. number reads Was and Set, as in With.
func ParseMemo(text string, number func(string) (int, error)) (m Memo, err error) {
	if err = format.Decode([]byte(text), &m); err != nil {
		return m, err
	}
	_, errWas := number(m.Was)
	_, errSet := strconv.Atoi(m.Set)
	if len(m.Nodes) == 0 {
		return m, errors.New("it names no node")
	}
	return m, errors.Join(errWas, errSet)
}

// For lists the nodes, sorted.
func (m Memo) For() []string { return slices.Sorted(maps.Keys(m.Nodes)) }

// By adds to the memo which run began to hold, and when, unless the memo says so already.
func (m Memo) By(run string, now time.Time) Memo {
	if len(m.Nodes) > 0 && m.Since.IsZero() {
		m.Run, m.Since = run, now.UTC().Truncate(time.Second)
	}
	return m
}

// Text returns the memo as JSON; "" for a memo without nodes.
func (m Memo) Text() (string, error) {
	if len(m.Nodes) == 0 {
		return "", nil
	}
	text, err := json.Marshal(m)
	if err != nil {
		return "", fmt.Errorf("encode what a setting was before: %w", err)
	}
	return string(text), nil
}

// With returns the setting's value and memo after a hold for a node that needs the given time. If someone else has
// set another value meanwhile, that value is the one to give back from then on. number says how long the system waits
// with a value; With fails if the value to give back is not a number.
func (m Memo) With(value, node string, need int, number func(string) (int, error)) (string, Memo, error) {
	if value != m.Set {
		m = Memo{Was: value}
	}
	was, err := number(m.Was)
	if err != nil {
		return "", Memo{}, fmt.Errorf("%q is not a number", m.Was)
	}
	if need <= was {
		value, m = m.Without(value, node)
		return value, m, nil
	}
	nodes := map[string]int{node: need}
	for other, needs := range m.Nodes {
		nodes[other] = max(needs, nodes[other])
	}
	m.Nodes = nodes
	m.Set = strconv.Itoa(max(was, slices.Max(slices.Collect(maps.Values(nodes)))))
	return m.Set, m, nil
}

// Without returns the setting's value and memo after the end of the hold for the nodes. A value that someone else has
// set meanwhile stays, and then the hold has ended for all nodes.
func (m Memo) Without(value string, nodes ...string) (string, Memo) {
	if value != m.Set {
		return value, Memo{}
	}
	left := maps.Clone(m.Nodes)
	maps.DeleteFunc(left, func(node string, _ int) bool { return slices.Contains(nodes, node) })
	if len(left) == 0 {
		return m.Was, Memo{}
	}
	m.Nodes = left
	m.Set = strconv.Itoa(slices.Max(slices.Collect(maps.Values(left))))
	return m.Set, m
}

// Setting is a setting of a storage system that says how long the system waits for a node, with the memo of recast's
// change.
type Setting struct {
	System string // as of the System
	Name   string // "replica-replenishment-wait-interval"
	Node   string // the node that it is about; "": every node
	Called string // in a refusal: "Longhorn's setting replica-replenishment-wait-interval"
	Said   string // in what was done: "replica-replenishment-wait-interval of Longhorn"
	Value  string
	Unset  string                          // what applies if it has no value, in words
	Unit   time.Duration                   // of the value
	Number func(value string) (int, error) // as of Memo.With
	Beside map[string]string               // where the memo is stored
	Key    string                          // of the memo in Beside
	At     string                          // in a refusal: "annotation recast.dev/hold of Longhorn's setting …"
	Forget string                          // how a person removes a memo that recast can't read
	// Write writes the value, "" for none, and the memo in one change.
	Write func(ctx context.Context, value string, m Memo) error
	Undo  func(m Memo) (string, error) // as of Hold
}

// memo reads the memo; one without nodes if nothing is stored.
func (s Setting) memo() (m Memo, err error) {
	text, held := s.Beside[s.Key]
	if !held {
		return m, nil
	}
	if m, err = ParseMemo(text, s.Number); err != nil {
		return m, fault.WithHint(fault.Refusedf("%s is not as recast writes it, so what was set before is not known: %s", s.At, foreign.Line(text)), "%s", s.Forget)
	}
	return m, nil
}

// Own returns the value that the setting has without recast's change.
func (s Setting) Own() (string, error) {
	m, err := s.memo()
	if err == nil && len(m.Nodes) > 0 && s.Value == m.Set {
		return m.Was, nil
	}
	return s.Value, err
}

// Held lists the settings that recast has changed.
func Held(settings []Setting) (holds []Hold, err error) {
	for _, s := range settings {
		m, err := s.memo()
		if err != nil {
			return nil, err
		}
		if len(m.Nodes) == 0 {
			continue
		}
		undo, err := s.Undo(m)
		if err != nil {
			return nil, err
		}
		holds = append(holds, Hold{System: s.System, Setting: s.Name, Now: foreign.Line(s.Value), Memo: m, Undo: undo})
	}
	return holds, nil
}

// HoldRebuild implements Holder for a system with these settings. If no setting is about the node, nothing changes.
func HoldRebuild(ctx context.Context, settings []Setting, node, run string, atLeast time.Duration) (said string, err error) {
	return amend([]string{node}, settings, func(s Setting) (string, error) {
		had, err := s.memo()
		if err != nil {
			return "", err
		}
		value, m, err := had.With(s.Value, node, int((atLeast+s.Unit-1)/s.Unit), s.Number)
		if err != nil {
			return "", fault.Refusedf("%s: %w", s.Called, err)
		}
		said := ""
		if value != s.Value && len(m.Nodes) > 0 {
			said = fmt.Sprintf("%s is %s instead of %s", s.Said, value, cmp.Or(m.Was, s.Unset))
		}
		return said, s.write(ctx, value, had, m.By(run, time.Now()))
	})
}

// GiveBack implements Holder for a system with these settings.
func GiveBack(ctx context.Context, settings []Setting, nodes ...string) (said string, err error) {
	return amend(nodes, settings, func(s Setting) (string, error) {
		had, err := s.memo()
		if err != nil || len(had.Nodes) == 0 {
			return "", err
		}
		value, m := had.Without(s.Value, nodes...)
		said := ""
		switch {
		case value != s.Value && len(m.Nodes) > 0:
			said = fmt.Sprintf("%s is %s, for %s", s.Said, value, strings.Join(m.For(), ", "))
		case value != s.Value:
			said = fmt.Sprintf("%s is %s again", s.Said, cmp.Or(value, s.Unset))
		case len(m.Nodes) == 0:
			said = fmt.Sprintf("%s stays %s: someone else has set that", s.Said, foreign.Line(cmp.Or(value, s.Unset)))
		}
		return said, s.write(ctx, value, had, m)
	})
}

// amend changes the settings that are about the nodes. said is what was done to all of these settings.
func amend(nodes []string, settings []Setting, change func(Setting) (string, error)) (said string, err error) {
	var all []string
	for _, s := range settings {
		if s.Node != "" && !slices.Contains(nodes, s.Node) {
			continue
		}
		text, err := change(s)
		if err != nil {
			return strings.Join(all, "; "), err
		}
		if text != "" {
			all = append(all, text)
		}
	}
	return strings.Join(all, "; "), nil
}

// write writes the value and the memo, unless the setting has both already.
func (s Setting) write(ctx context.Context, value string, had, m Memo) error {
	if value == s.Value && m.Set == had.Set && maps.Equal(m.Nodes, had.Nodes) {
		return nil
	}
	return s.Write(ctx, value, m)
}

// Longest is how long a rebuild is held back at most. However long Longhorn waits, it deletes a failed replica, with
// its data, after the staleReplicaTimeout of its volume: 30 minutes in Longhorn's own StorageClass (longhorn,
// chart/templates/storageclass.yaml; shouldCleanUpFailedReplica in longhorn-manager's
// controller/volume_controller.go). Longest counts from when a volume lost a copy, so it is also how long the volumes
// of a node that never comes back have one copy less.
const Longest = 30 * time.Minute

// spared is how long a system that evicts nodes is told to wait at least. An evicted node would not come back by
// itself, so a roll needs the time to put the node's old system back.
const spared = time.Hour

// Holding returns how long the system is to wait for a node that is expected to be away for the outage: twice the
// outage and at most Longest or, if the system evicts nodes, at least an hour. 0: the system waits long enough by
// itself, the node has no copies, recast can't have the system wait longer, or Longest would not suffice.
func (s System) Holding(node string, outage time.Duration) time.Duration {
	n, _ := s.node(node)
	switch {
	case !s.Holds || n.Fixed:
		return 0
	case s.Evicts:
		if need := max(2*outage, spared); s.PatienceFor(node) < need {
			return need
		}
		return 0
	case s.On(node) == 0 || outage <= s.Patience || outage >= Longest:
		return 0
	}
	return min(2*outage, Longest)
}
