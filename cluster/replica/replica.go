// Package replica says what depends on a node's copies of replicated volumes: [Exposed] lists the volumes that have
// no other healthy copy, [Unhealed] those that are not whole again. A [Holder] tells their systems to wait for a node
// that is away.
package replica

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/foreign"
	"github.com/recast-sh/recast/internal/format"
	"github.com/recast-sh/recast/internal/words"
)

// System is a storage system of the cluster that keeps copies of volumes on several nodes, as its own objects show it.
type System struct {
	Name     string        // "Longhorn"
	Pools    bool          // its volumes are whole pools, with parts on all of their nodes: each needs all others
	Patience time.Duration // how long it waits for a copy that is away before it makes another; 0: unknown
	Waits    string        // the setting that says so
	Holds    bool          // recast can have it wait longer; Patience is how long it waits without that, 0 included
	Held     []Hold        // the holds that are in force
	Stuck    string        // why volumes that are used through a node that is away wait for it; "": another node serves them soon
	Unstuck  string        // what to do so that Stuck ends
	Evicts   bool          // it gives up a node that is away longer, copies or not: only a person brings the node back
	Remedy   string        // how a person has it wait for a node, here called NODE; "": nothing known
	Away     string        // why its objects may be out of date; "": its controllers run
	Return   string        // what ends Away; "": its controllers come back
	Holders  []string      // nodes that may have copies while Away says that no volume can be listed
	Nodes    []Node        // the nodes that it knows
	Volumes  []Volume
}

// Volume is a replicated volume.
type Volume struct {
	Name     string // with its namespace
	Claim    string // "default/db-0"; "" if unknown
	Wanted   int    // copies
	Alone    bool   // its owner wants one copy, and the system lets a node with that copy go
	Idle     bool   // not in use: the system makes and repairs no copy now
	Robust   bool   // the system says that it has all its copies
	Why      string // why it is not Robust, in the system's words; "": they say nothing
	Checked  string // when the system last looked; "": it always knows
	Replicas []Replica
	Through  string // the node through which Users use the volume; "": each user by itself. Users may be unknown.
	Users    []string
	// Majority: usable only with most copies, or half of them and most of the Witnesses, nodes without a copy.
	Majority   bool
	Witnesses  []string
	Placements []Placement // of a whole pool: how its data lies on nodes
	Voters     []Voter     // of a whole pool: most of them must run for it to be used
	Doubt      string      // why it is not known which Voters vote; "": it is known
}

// Replica is a copy of a volume on a node.
type Replica struct {
	Node    string
	Healthy bool // complete and current
	Unused  bool // nothing was ever written to it
	Rebuilt bool // is being filled now
	Percent int  // filled part of the copy; 0: nothing, or unknown
}

func (v Volume) Whole() bool {
	return len(v.Replicas) >= v.Wanted && !slices.ContainsFunc(v.Replicas, func(r Replica) bool { return !r.Healthy })
}

// Off returns the setting in recast.yaml with which a roll ignores a storage system.
func Off(system string) string { return "roll.storage: {" + strings.ToLower(system) + ": off}" }

// Exposure is a volume that would have no usable copy without a node.
type Exposure struct {
	System string
	Volume string // "Longhorn volume longhorn-system/pvc-1 (claim default/db-0)"
	Why    string
	Remedy string
	Alone  bool   // its owner wants no other copy, and the system lets the node go
	Brief  bool   // it is usable again long before the node is back
	Note   string // what to know about an exposure that does not refuse
}

// Refuses says whether the exposure forbids a node to go. removed: the node does not come back.
func (e Exposure) Refuses(removed bool) bool { return !e.Brief && (!e.Alone || removed) }

const meanwhile = ", and is not there while the node is away"

func (e Exposure) String() string { return e.Volume + " " + e.Why }

func (s System) about(v Volume) string {
	text := s.Name + " volume " + v.Name
	if s.Pools {
		text = s.Name + " cluster " + v.Name
	}
	if v.Claim != "" {
		text += " (claim " + v.Claim + ")"
	}
	return text
}

// On counts the copies on a node that have been written to.
func (s System) On(node string) (n int) {
	for _, v := range s.Volumes {
		for _, r := range v.Replicas {
			if r.Node == node && !r.Unused {
				n++
			}
		}
	}
	return n
}

// down says why copies on a node can't be used; "": they can. On a node unknown to the system they can't.
func (s System) down(node string, away func(node string) bool) string {
	if away(node) {
		return "is away"
	}
	n, known := s.node(node)
	if !known {
		return "is not known to " + s.Name
	}
	return n.Down
}

// Exposed lists the volumes with a copy on the node that have no other healthy copy on a node that serves and is not
// away. It also lists volumes that would lose their quorum without the node, and volumes that other nodes use through
// it. A system that does not know the present state of its copies on the node is one exposure.
func Exposed(systems []System, node string, away func(node string) bool) (out []Exposure) {
	for _, s := range systems {
		var here []Volume
		for _, v := range s.Volumes {
			if e := s.through(v, node); e.Why != "" && s.Away == "" {
				out = append(out, e)
			}
			if slices.ContainsFunc(v.Replicas, func(r Replica) bool { return r.Node == node && !r.Unused }) {
				here = append(here, v)
			} else if s.Away == "" && slices.Contains(v.Witnesses, node) {
				if why, remedy := s.minority(v, node, away); why != "" {
					out = append(out, Exposure{System: s.Name, Volume: s.about(v), Why: why, Remedy: remedy})
				}
			}
		}
		if s.Away != "" && (len(here) > 0 || slices.Contains(s.Holders, node)) {
			has := fmt.Sprintf("%s has %s on it", s.Name, count(len(here)))
			if len(here) == 0 {
				has = s.Name + " may have volumes on it"
			}
			out = append(out, Exposure{
				System: s.Name, Volume: has, Why: "and does not say how they are now: " + s.Away, Remedy: cmp.Or(s.Return, "bring its controllers back first"),
			})
			continue
		}
		if s.Pools {
			out = append(out, s.poolsExposed(node, away)...)
			continue
		}
		for _, v := range here {
			why, remedy := s.exposed(v, node, away)
			if why == "" {
				why, remedy = s.minority(v, node, away)
			}
			if why != "" {
				out = append(out, Exposure{System: s.Name, Volume: s.about(v), Why: why, Remedy: remedy, Alone: v.Alone, Note: s.about(v) + " has its only replica on it" + meanwhile})
			}
		}
	}
	return out
}

// exposed says why the node can't be spared; "" if it can.
func (s System) exposed(v Volume, node string, away func(node string) bool) (why, remedy string) {
	var others, lost []string
	healthyHere, rebuilt := false, false
	for _, r := range v.Replicas {
		switch down := ""; {
		case r.Node == node:
			healthyHere = healthyHere || r.Healthy
		case r.Rebuilt:
			rebuilt = true
		case r.Healthy:
			if down = s.down(r.Node, away); down == "" {
				return "", ""
			}
			lost = append(lost, r.Node+" "+down)
		default:
			if n, _ := s.node(r.Node); n.Down != "" {
				lost = append(lost, r.Node+" "+n.Down)
				continue
			}
			others = append(others, r.Node)
		}
	}
	why = "has its only healthy replica on it"
	if !healthyHere {
		why = "has no healthy replica"
	}
	switch {
	case len(lost) > 0:
		return why + ": " + strings.Join(lost, ", "), "bring that back first"
	case rebuilt:
		return why + ": another one is being rebuilt", "wait until that is done"
	case v.Wanted == 1:
		return why + ": it is to have one only", "give it a second one"
	case v.Idle:
		return why + ": " + s.Name + " repairs the others only while it is attached", "attach it, and wait until it is healthy"
	case len(others) > 0:
		return why + ": those on " + strings.Join(others, ", ") + " have failed", "wait until " + s.Name + " has rebuilt them"
	}
	return why, "wait until " + s.Name + " has made another"
}

// through: other nodes use the volume through the node. One that is Alone there is away with it in any case.
func (s System) through(v Volume, node string) Exposure {
	others := slices.DeleteFunc(slices.Clone(v.Users), func(user string) bool { return user == node })
	only := v.Alone && slices.ContainsFunc(v.Replicas, func(r Replica) bool { return r.Node == node })
	if v.Through != node || only || len(v.Users) > 0 && len(others) == 0 {
		return Exposure{}
	}
	used := "is used by " + Some(others) + " through it"
	if len(others) == 0 {
		used = "may be used by other nodes through it"
	}
	if s.Stuck != "" {
		return Exposure{System: s.Name, Volume: s.about(v), Why: used + ", and waits for it while it is away: " + s.Stuck, Remedy: s.Unstuck}
	}
	return Exposure{System: s.Name, Volume: s.about(v), Why: used, Brief: true, Note: s.about(v) + " " + used + ": what writes to it waits until " + s.Name + " serves it through another node"}
}

// minority says why a volume with a healthy copy left would lose its quorum without the node; "": it would not.
func (s System) minority(v Volume, node string, away func(node string) bool) (why, remedy string) {
	if !v.Majority {
		return "", ""
	}
	var lost []string
	count := func(nodes []string) (there, of int) {
		for _, name := range nodes {
			down := ""
			if name != node {
				if down = s.down(name, away); down == "" {
					there++
				} else {
					lost = append(lost, name+" "+down)
				}
			}
		}
		return there, len(nodes)
	}
	var copies []string
	for _, r := range v.Replicas {
		copies = append(copies, r.Node)
	}
	there, of := count(copies)
	witnesses, ofWitnesses := count(v.Witnesses)
	if 2*there > of || 2*there == of && 2*witnesses > ofWitnesses || len(lost) == 0 {
		return "", ""
	}
	return "loses its quorum without it: " + strings.Join(lost, ", "), "bring that back first"
}

// Ailing names the volumes in use that don't have all their copies, sorted.
func Ailing(systems []System) []string {
	names := []string{}
	for _, s := range systems {
		for _, v := range s.Volumes {
			if !v.Idle && !v.Robust {
				names = append(names, v.Name)
			}
		}
	}
	slices.Sort(names)
	return names
}

// Unhealed says, for people, what is not whole although the node is back. It is "" if the node serves its copies and
// each volume in use has all of its copies. A volume that was ailing before the node went may stay so, unless its
// copy on the node is incomplete or any of its copies is being rebuilt.
func Unhealed(systems []System, node string, ailing []string) string {
	var parts []string
	for _, s := range systems {
		if len(s.Volumes)+len(s.Holders) == 0 {
			continue
		}
		if s.Away != "" {
			parts = append(parts, s.Name+": "+s.Away)
			continue
		}
		if trouble := s.trouble(node); trouble != "" {
			parts = append(parts, s.Name+": "+trouble)
			continue
		}
		if text := s.unhealed(node, ailing); text != "" {
			parts = append(parts, text)
		}
	}
	return strings.Join(parts, "; ")
}

func (s System) unhealed(node string, ailing []string) string {
	if s.Pools {
		return s.unhealedPools(node)
	}
	var names []string
	healthy, wanted, rebuilt, percent := 0, 0, 0, 0
	for _, v := range s.Volumes {
		if v.Idle {
			continue
		}
		has, busy := 0, false
		for _, r := range v.Replicas {
			if r.Healthy {
				has++
			}
			if r.Rebuilt {
				rebuilt, percent = rebuilt+1, percent+r.Percent
			}
			busy = busy || r.Rebuilt || r.Node == node && !r.Healthy
		}
		healthy, wanted = healthy+has, wanted+max(v.Wanted, has)
		if !v.Robust && (busy || !slices.Contains(ailing, v.Name)) {
			names = append(names, v.Name)
		}
	}
	if len(names) == 0 {
		return ""
	}
	text := fmt.Sprintf("%s: %d of %d replicas healthy", s.Name, healthy, wanted)
	if rebuilt > 0 {
		text += fmt.Sprintf(", %d being rebuilt", rebuilt)
	}
	if percent > 0 {
		text += fmt.Sprintf(" (%d %%)", percent/rebuilt)
	}
	slices.Sort(names)
	return text + fmt.Sprintf("; %s not healthy: %s", count(len(names)), Some(names))
}

func count(volumes int) string { return words.Counted(volumes, "volume") }

// Unchecked names volumes with copies or voters on the node that were not checked since the first call with seen.
func Unchecked(systems []System, node string, seen map[string]string) string {
	var names []string
	for _, s := range systems {
		for _, v := range s.Volumes {
			before, asked := seen[s.Name+" "+v.Name]
			here := slices.ContainsFunc(v.Replicas, func(r Replica) bool { return r.Node == node }) ||
				slices.ContainsFunc(v.Voters, func(m Voter) bool { return m.Node == node })
			if !here || v.Checked == "" || asked && before != v.Checked {
				continue
			}
			seen[s.Name+" "+v.Name] = v.Checked
			names = append(names, s.about(v))
		}
	}
	if len(names) == 0 {
		return ""
	}
	return Some(names) + ": its health was not checked since"
}

// shown is how many names fit on a line.
const shown = 3

func Some(names []string) string {
	text := strings.Join(names[:min(len(names), shown)], ", ")
	if more := len(names) - shown; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

// Node is a node as the system knows it.
type Node struct {
	Name     string
	Down     string        // why its copies can't be used now; "": they can
	Lacks    string        // what else is wrong with it
	Patience time.Duration // how long the system waits for this node; 0: as for others, Forever: it does nothing
	Fixed    bool          // recast can't change Patience: something else would set it back
}

// Forever is longer than any node is away.
const Forever = time.Duration(math.MaxInt64)

func (s System) node(name string) (n Node, known bool) {
	i := slices.IndexFunc(s.Nodes, func(n Node) bool { return n.Name == name })
	if i < 0 {
		return n, false
	}
	return s.Nodes[i], true
}

// PatienceFor returns how long the system waits for that node; 0: unknown.
func (s System) PatienceFor(node string) time.Duration {
	n, known := s.node(node)
	if s.Evicts && !known {
		return Forever
	}
	return cmp.Or(n.Patience, s.Patience)
}

// trouble says what a node lacks to serve its copies; "" if nothing, or if the system does not know the node.
func (s System) trouble(node string) string {
	n, _ := s.node(node)
	if n.Down != "" {
		return node + " " + n.Down
	}
	return n.Lacks
}

// Placement is how the data of one pool of a Ceph cluster lies on nodes.
type Placement struct {
	Pool   string         // "CephBlockPool replicapool"
	Domain string         // its failure domain, as its owner wrote it
	Copies int            // of each object, or its chunks
	Needs  int            // how many of them must be there for the object to be used
	On     map[string]int // how many of an object's copies or chunks may be on each node
}

// short says whether objects of the pool may have too few copies without a node.
func (p Placement) short(node string) bool { return p.Copies-p.On[node] < p.Needs }

// Voter is a monitor of a Ceph cluster.
type Voter struct {
	Name  string
	Node  string // "": it is on none
	Votes bool   // it runs and is in quorum
}

func (m Voter) String() string {
	if m.Node == "" {
		return "monitor " + m.Name
	}
	return "monitor " + m.Name + " on " + m.Node
}

func (s System) poolsExposed(node string, away func(node string) bool) (out []Exposure) {
	for _, v := range s.Volumes {
		add := func(e Exposure) {
			e.System, e.Volume = s.Name, s.about(v)
			out = append(out, e)
		}
		if slices.ContainsFunc(v.Replicas, func(r Replica) bool { return r.Node == node }) {
			if why, remedy := s.partExposed(v, node, away); why != "" {
				add(Exposure{Why: why, Remedy: remedy})
			}
			for _, e := range s.placed(v, node) {
				add(e)
			}
		}
		if e := s.outvoted(v, node, away); e.Why != "" {
			add(e)
		}
	}
	return out
}

// placed lists pools that may have too few copies without the node, but for those whose owner accepts even that.
func (s System) placed(v Volume, node string) (out []Exposure) {
	if !slices.ContainsFunc(v.Replicas, func(r Replica) bool { return r.Node != node }) {
		return []Exposure{{
			Alone: true, Why: "has all its data on it", Remedy: "add OSDs on other nodes",
			Note: "it is the only node with OSDs of " + s.about(v) + ", which is not there while the node is away",
		}}
	}
	for _, p := range v.Placements {
		switch on := p.On[node]; {
		case on == 0 || !p.short(node):
		case on == 1:
			out = append(out, Exposure{
				Alone: true, Why: fmt.Sprintf("needs %d of %d copies of %s, and may have one on it", p.Needs, p.Copies, p.Pool), Remedy: "raise the pool's size",
				Note: fmt.Sprintf("%s of %s needs %d of its %d copies: data with one on it is not there while the node is away", p.Pool, s.about(v), p.Needs, p.Copies),
			})
		default:
			out = append(out, Exposure{
				Why:    fmt.Sprintf("may have %d of the %d copies of data of %s on it (failureDomain %s), and %d must be there", on, p.Copies, p.Pool, p.Domain, p.Needs),
				Remedy: "give the pool the failureDomain host",
			})
		}
	}
	return out
}

// outvoted: the monitors left are no quorum. That a node has all of them, or one of two, its owner wants so.
func (s System) outvoted(v Volume, node string, away func(node string) bool) Exposure {
	var lost []string
	voters, here, there := len(v.Voters), 0, 0
	known := false
	for _, m := range v.Voters {
		switch {
		case m.Node == node:
			known = true
			if m.Votes {
				here++
			}
		case !m.Votes:
			lost = append(lost, m.String()+" is not in quorum")
		default:
			if down := s.down(m.Node, away); down != "" {
				lost = append(lost, m.Node+" "+down)
				continue
			}
			there++
		}
	}
	const loses = "loses the quorum of its monitors without it: "
	switch {
	case known && v.Doubt != "":
		return Exposure{Why: "may lose the quorum of its monitors without it: " + v.Doubt, Remedy: "wait until it has repaired that"}
	case here == 0 || 2*there > voters:
		return Exposure{}
	case len(lost) > 0:
		return Exposure{Why: loses + strings.Join(lost, ", "), Remedy: "bring that back first"}
	case here == voters || here == 1:
		has := "its only monitor"
		if voters > 1 {
			has = fmt.Sprintf("%d of its %d monitors", here, voters)
		}
		return Exposure{Alone: true, Why: "has " + has + " on it", Remedy: "give it three, on three nodes", Note: s.about(v) + " has " + has + " on it" + meanwhile}
	}
	return Exposure{Why: loses + fmt.Sprintf("%d of %d are on it", here, voters), Remedy: "have Rook move one (spec.mon.allowMultiplePerNode: false)"}
}

// partExposed is exposed for a pool: some of the pool's data may be only on the node and one other node.
func (s System) partExposed(v Volume, node string, away func(node string) bool) (why, remedy string) {
	const only = "may have the only healthy replica of some data on it: "
	for _, r := range v.Replicas {
		switch down := s.down(r.Node, away); {
		case r.Node == node:
		case down != "":
			return only + r.Node + " " + down, "bring that back first"
		case !r.Healthy:
			return only + r.Node + " does not serve all of its own", "bring that back first"
		}
	}
	if !v.Robust {
		return only + v.Why, "wait until it has repaired that"
	}
	return "", ""
}

func (s System) unhealedPools(node string) string {
	var parts []string
	for _, v := range s.Volumes {
		switch {
		case slices.ContainsFunc(v.Replicas, func(r Replica) bool { return r.Node == node && !r.Healthy }):
			parts = append(parts, fmt.Sprintf("%s: %s does not serve all of its data yet", s.about(v), node))
		case !v.Robust:
			parts = append(parts, s.about(v)+": "+v.Why)
		}
		for _, m := range v.Voters {
			if m.Node == node && !m.Votes {
				parts = append(parts, fmt.Sprintf("%s: %s is not in quorum yet", s.about(v), m))
			}
		}
	}
	return strings.Join(parts, "; ")
}

// HoldReader reads which storage systems wait longer because recast told them to.
type HoldReader interface {
	// Holds lists what is held, read again on each call. A system that is not installed costs no request.
	Holds(ctx context.Context) ([]Hold, error)
	// MayHold says why recast may not have the system wait longer; nil: it may, or need not; fault.Refused: no right.
	MayHold(ctx context.Context, system string) error
}

// Holder tells storage systems to wait longer for the copies on a node that is away, before they make other copies on
// other nodes. The change of a setting also stores the previous value beside the setting: it can't be lost, whoever
// is killed, and every run finds it.
type Holder interface {
	// HoldRebuild has the system wait that long while the run has the node away; said "": it does. It may be repeated.
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

// Without ends the nodes' hold. A value that someone else has set stays, and ends the hold for all nodes.
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

// Setting says how long a storage system waits for a node, with the memo of recast's change.
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

// spared is for systems that evict: a node would not come back by itself, and its old system must be put back first.
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
