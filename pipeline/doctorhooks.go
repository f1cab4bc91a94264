package pipeline

import (
	"strings"

	"github.com/recast-sh/recast/cluster"
)

// Webhook is one of the configured webhooks as it stands.
type Webhook struct {
	Name string   // its host
	On   []string // what it is told of
	Err  error    // why nothing can be sent to it
}

// hooks looks whether the programs are there, and runs none: each does something.
func (d *checkup) hooks() {
	when := map[cluster.HookPoint]string{
		cluster.BeforeRun: "before it begins", cluster.AfterRun: "at its end", cluster.BeforeBatch: "before each batch", cluster.AfterBatch: "after each batch",
		cluster.BeforeNode: "before each node", cluster.AfterNode: "once each node is back",
	}
	hooks := d.Project.hooks()
	for _, point := range cluster.HookPoints() {
		for _, h := range hooks.At(point) {
			d.runnable(GroupHooks, h.String(), "roll.hooks", when[point], h.Command)
		}
	}
}

// webhooks says what is known of them, and sends nothing.
func (d *checkup) webhooks() {
	for _, w := range d.src.Webhooks {
		if w.Err != nil {
			d.warn(GroupWebhooks, w.Name, "set the variable where recast runs; a roll goes on without", "%v", w.Err)
			continue
		}
		d.ok(GroupWebhooks, w.Name, "is told of: %s", strings.Join(w.On, ", "))
	}
}
