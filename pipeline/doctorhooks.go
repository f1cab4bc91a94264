package pipeline

import (
	"strings"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/roll"
)

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
	hooks := d.Project.Hooks()
	for _, point := range roll.HookPoints() {
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
