package linstor

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strconv"
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
	if err != nil {
		return c, fmt.Errorf("encode a change of LINSTOR's node: %w", err)
	}
	put(holdMemo, string(text))
	return c, nil
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

// Settings are those that say how long LINSTOR waits before it evicts each node.
func (c Controller) Settings(ctx context.Context) ([]replica.Setting, error) {
	var a answers
	if err := c.Get(ctx, "/v1/nodes", &a.nodes); err != nil {
		return nil, err
	}
	if err := c.Get(ctx, "/v1/controller/properties", &a.properties); err != nil {
		return nil, err
	}
	return a.settings(c), nil
}

func (a answers) settings(c Controller) (all []replica.Setting) {
	for _, n := range a.nodes {
		what := evictAfter + " of " + foreign.Line(n.Name)
		all = append(all, replica.Setting{
			System: Name, Name: what, Node: n.Name, Called: what + " in LINSTOR", Said: what + " in LINSTOR",
			Value: n.Props[evictAfter], Unset: "the controller's", Unit: time.Minute, Number: a.minutes,
			Memo: func() (replica.Memo, error) { return a.memo(n) },
			Undo: func(m replica.Memo) (string, error) { return c.undo(n, m) },
			// LINSTOR can't refuse a write because of another one since our read: only what is changed is written, and runs of
			// recast hold a claim.
			Write: func(ctx context.Context, value string, m replica.Memo) error {
				body, err := n.turn(value, m)
				if err != nil {
					return err
				}
				return c.Put(ctx, "/v1/nodes/"+n.Name, body)
			},
		})
	}
	return all
}

// undo is the command that gives back what the memo says.
func (c Controller) undo(n node, m replica.Memo) (string, error) {
	value, none, err := m.Without(n.Props[evictAfter], m.For()...)
	if err != nil {
		return "", err
	}
	back, err := n.turn(value, none)
	if err != nil {
		return "", err
	}
	body, err := json.Marshal(back)
	if err != nil {
		return "", fmt.Errorf("encode a change of LINSTOR's node: %w", err)
	}
	return fmt.Sprintf("echo '%s' | kubectl replace --raw %s/v1/nodes/%s -f -", body, c.Place, url.PathEscape(n.Name)), nil
}
