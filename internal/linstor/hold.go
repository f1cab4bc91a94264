package linstor

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/recast-sh/recast/cluster/replica"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/foreign"
)

const (
	// holdMemo is the property of a node that is JSON of a replica.Memo about its evictAfter. Whoever may change a node
	// may set any property below Aux (fillProperties in CtrlPropsHelper.java).
	holdMemo = "Aux/recast.dev/hold"
	// applied lists, as JSON, the properties of a node that Piraeus sets back each minute; it leaves others alone
	// (piraeus-operator, pkg/linstorhelper/properties.go and internal/controller/linstorsatellite_controller.go).
	applied = "Aux/piraeus.io/last-applied"
)

// Controller is LINSTOR's controller, as far as recast changes something of it.
type Controller struct {
	Get   Get
	Put   func(ctx context.Context, path string, body any) error
	Place string // what comes before a path of the API in "kubectl replace --raw"
}

// change is a NodeModify, which is one transaction (modifyInTransaction in CtrlNodeApiCallHandler.java).
type change struct {
	Set    map[string]string `json:"override_props"`
	Delete []string          `json:"delete_props"`
}

// turn is the change after which the node has that value of evictAfter, "" for none, and that memo.
func (n node) turn(value string, m replica.Memo) (change, error) {
	c := change{Set: map[string]string{}, Delete: []string{}}
	put := func(key, value string) {
		if value == "" {
			c.Delete = append(c.Delete, key)
		} else {
			c.Set[key] = value
		}
	}
	if value != n.Props[evictAfter] {
		put(evictAfter, value)
	}
	if len(m.Nodes) == 0 {
		put(holdMemo, "")
		return c, nil
	}
	text, err := json.Marshal(m)
	put(holdMemo, string(text))
	return c, err
}

// minutes reads evictAfter of a node; "" is the controller's.
func (a answers) minutes(value string) (int, error) {
	return strconv.Atoi(cmp.Or(value, a.properties[evictAfter], defaultEvictAfter))
}

// memo is what recast remembers with a node; no nodes are in it if there is nothing.
func (a answers) memo(n node) (replica.Memo, error) {
	text, held := n.Props[holdMemo]
	if !held {
		return replica.Memo{}, nil
	}
	m, err := replica.ParseMemo(text, a.minutes)
	if err != nil {
		return m, fault.WithHint(fault.Refusedf("property %s of LINSTOR's node %s is not as recast writes it, so what was set before is not known: %s", holdMemo, foreign.Line(n.Name), foreign.Line(text)),
			"see that %s of the node has the value that you want, then remove the other: linstor node set-property --aux %s recast.dev/hold", evictAfter, foreign.Line(n.Name))
	}
	return m, nil
}

// fixed says whether Piraeus would set the node's evictAfter back.
func (n node) fixed() bool {
	var keys []string
	_ = json.Unmarshal([]byte(n.Props[applied]), &keys) // another text is not Piraeus'
	return slices.Contains(keys, evictAfter)
}

// read reads the nodes, and what the controller says of all of them.
func (c Controller) read(ctx context.Context) (a answers, err error) {
	if err := c.Get(ctx, "/v1/nodes", &a.nodes); err != nil {
		return a, err
	}
	return a, c.Get(ctx, "/v1/controller/properties", &a.properties)
}

// Holds lists the nodes for which LINSTOR waits longer than it would.
func (c Controller) Holds(ctx context.Context) ([]replica.Hold, error) {
	a, err := c.read(ctx)
	if err != nil {
		return nil, err
	}
	return a.holds(c.Place)
}

func (a answers) holds(place string) (holds []replica.Hold, err error) {
	for _, n := range a.nodes {
		m, err := a.memo(n)
		if err != nil {
			return nil, err
		}
		if len(m.Nodes) == 0 {
			continue
		}
		now := n.Props[evictAfter]
		value, none, err := m.Without(now, m.For()...)
		if err != nil {
			return nil, err
		}
		back, err := n.turn(value, none)
		if err != nil {
			return nil, err
		}
		body, err := json.Marshal(back)
		if err != nil {
			return nil, fmt.Errorf("encode a change of LINSTOR's node: %w", err)
		}
		holds = append(holds, replica.Hold{
			System: Name, Setting: evictAfter + " of " + foreign.Line(n.Name), Now: foreign.Line(now), Memo: m,
			Undo: fmt.Sprintf("echo '%s' | kubectl replace --raw %s/v1/nodes/%s -f -", body, place, url.PathEscape(n.Name)),
		})
	}
	return holds, nil
}

// Hold has LINSTOR wait at least that long before it evicts the node; said is as of replica.Holder.
func (c Controller) Hold(ctx context.Context, name, run string, atLeast time.Duration) (said string, err error) {
	need := int((atLeast + time.Minute - 1) / time.Minute)
	err = c.amend(ctx, name, func(a answers, n node, had replica.Memo) (string, replica.Memo, error) {
		before := n.Props[evictAfter]
		value, m, err := had.With(before, name, need, a.minutes)
		if err == nil && value != before && len(m.Nodes) > 0 {
			was := cmp.Or(m.Was, "the controller's")
			said = fmt.Sprintf("%s of %s in LINSTOR is %s instead of %s", evictAfter, name, value, was)
		}
		return value, m.By(run, time.Now()), err
	})
	return said, err
}

// GiveBack ends what is held for these nodes; said is as of replica.Holder.
func (c Controller) GiveBack(ctx context.Context, names ...string) (string, error) {
	var said []string
	for _, name := range names {
		text := ""
		err := c.amend(ctx, name, func(_ answers, n node, had replica.Memo) (string, replica.Memo, error) {
			before := n.Props[evictAfter]
			if len(had.Nodes) == 0 {
				return before, had, nil
			}
			value, m, err := had.Without(before, name)
			what := evictAfter + " of " + name + " in LINSTOR"
			if text = fmt.Sprintf("%s is %s again", what, cmp.Or(value, "the controller's")); before != had.Set {
				text = fmt.Sprintf("%s stays %s: someone else has set that", what, foreign.Line(cmp.Or(before, "the controller's")))
			}
			return value, m, err
		})
		if err != nil {
			return strings.Join(said, "; "), err
		}
		if text != "" {
			said = append(said, text)
		}
	}
	return strings.Join(said, "; "), nil
}

// amend changes evictAfter of a node, and what is remembered of it, in one write. LINSTOR can't refuse a write because of
// another one since our read: only what is changed is written, and runs of recast hold a claim. A node that LINSTOR does
// not know has nothing that could be changed.
func (c Controller) amend(ctx context.Context, name string, to func(answers, node, replica.Memo) (string, replica.Memo, error)) error {
	a, err := c.read(ctx)
	if err != nil {
		return err
	}
	i := slices.IndexFunc(a.nodes, func(n node) bool { return n.Name == name })
	if i < 0 {
		return nil
	}
	n := a.nodes[i]
	had, err := a.memo(n)
	if err != nil {
		return err
	}
	value, m, err := to(a, n, had)
	if err != nil {
		return fault.Refusedf("%s of %s in LINSTOR: %w", evictAfter, name, err)
	}
	if value == n.Props[evictAfter] && m.Set == had.Set && maps.Equal(m.Nodes, had.Nodes) {
		return nil
	}
	body, err := n.turn(value, m)
	if err != nil {
		return fmt.Errorf("encode a change of LINSTOR's node: %w", err)
	}
	return c.Put(ctx, "/v1/nodes/"+name, body)
}
