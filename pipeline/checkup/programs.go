package checkup

import (
	"context"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/rolling"
	"github.com/recast-sh/recast/internal/fault"
)

// askGate is the timeout for checking one gate.
const askGate = 30 * time.Second

// gates checks every gate about objects once. Programs are only looked for, since they
// are run for a node.
func (d *checkup) gates(ctx context.Context) {
	for _, g := range d.Gates() {
		switch {
		case g.Command != nil:
			d.program(g)
		case d.src.Objects == nil || d.survey.Kubernetes != nil:
			// reported already
		default:
			d.gate(ctx, g)
		}
	}
}

// program checks that the program of a gate exists.
func (d *checkup) program(g cluster.UserGate) {
	when := "before each node, and when it is back"
	if g.BeforeOnly {
		when = "before each node"
	}
	d.runnable(GroupGates, g.String(), "roll.gates", when, *g.Command)
}

// runnable checks that a program can be run, without running it.
func (d *checkup) runnable(group, what, key, when string, c cluster.CommandGate) {
	name := c.Args[0]
	if strings.ContainsRune(name, filepath.Separator) && !filepath.IsAbs(name) {
		name = filepath.Join(c.Dir, name)
		if !filepath.IsAbs(name) { // without its dot, ./check.sh would be looked for in PATH
			name = "." + string(filepath.Separator) + name
		}
	}
	if _, err := exec.LookPath(name); err != nil {
		d.refuse(group, what, "command in "+key+" must name a program that can be run here", "%v", err)
		return
	}
	d.ok(group, what, "a roll runs it %s", when)
}

func (d *checkup) gate(ctx context.Context, g cluster.UserGate) {
	ctx, cancel := context.WithTimeout(ctx, askGate)
	defer cancel()
	holds, seen, err := rolling.GateAsker{Objects: d.src.Objects}.Look(ctx, g)
	switch {
	case err != nil && fault.KindOf(err) == fault.Failed && ctx.Err() == nil:
		d.warn(GroupGates, g.String(), "a roll retries until its timeout", "could not be checked: %v", err)
	case err != nil:
		d.fail(GroupGates, g.String(), err)
	case holds:
		d.ok(GroupGates, g.String(), "holds")
	default:
		d.warn(GroupGates, g.String(), "a roll waits for it before it takes a node down, and gives up after "+(time.Duration(g.TimeoutSeconds)*time.Second).String(), "does not hold: %s", seen)
	}
}

// Webhook is the state of one of the configured webhooks.
type Webhook struct {
	Name string   // its host
	On   []string // its events
	Err  error    // why nothing can be sent to it
}

// hooks checks that the programs exist. It runs none, since they have effects.
func (d *checkup) hooks() {
	when := map[cluster.HookPoint]string{
		cluster.BeforeRun: "before it starts", cluster.AfterRun: "at its end", cluster.BeforeBatch: "before each batch", cluster.AfterBatch: "after each batch",
		cluster.BeforeNode: "before each node", cluster.AfterNode: "when each node is back",
	}
	hooks := d.Hooks()
	for _, point := range cluster.HookPoints() {
		for _, h := range hooks.At(point) {
			d.runnable(GroupHooks, h.String(), "roll.hooks", when[point], h.Command)
		}
	}
}

// webhooks reports their state, and sends nothing.
func (d *checkup) webhooks() {
	for _, w := range d.src.Webhooks {
		if w.Err != nil {
			d.warn(GroupWebhooks, w.Name, "set the variable where recast runs; a roll continues without it", "%v", w.Err)
			continue
		}
		d.ok(GroupWebhooks, w.Name, "gets: %s", strings.Join(w.On, ", "))
	}
}
