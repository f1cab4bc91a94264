// Package support collects what is needed to get help, without secrets. [Bundle] does it;
// [Sources] are the reads that it may use. Only fields on a fixed list get into the bundle,
// and what looks like a secret is removed from them.
package support

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/observe"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/bundle"
	"github.com/recast-sh/recast/internal/journal"
	"github.com/recast-sh/recast/pipeline"
	"github.com/recast-sh/recast/pipeline/checkup"
	"github.com/recast-sh/recast/pipeline/past"
	"github.com/recast-sh/recast/schematics"
)

// Sources are the inputs of Bundle. A nil source is skipped.
type Sources struct {
	Version any // of this program
	// Config is the text of recast.yaml, and Invalid why it can't be used.
	Config  []byte
	Invalid error
	// Secrets are all known secrets: none of them is ever included.
	Secrets []string

	Status  func(context.Context) (pipeline.StatusResult, error)
	Doctor  func(context.Context) checkup.Result
	Observe func(context.Context) (observe.Observation, error)
	VMs     func(context.Context) ([]cluster.VM, error)
	Etcd    cluster.EtcdReader
}

// Timeout of each source, and limits for past runs.
const (
	bundleAsks = 100 * time.Second // longer than doctor's own timeouts
	bundleRuns = 5
	bundleLog  = 4 << 20 // of each log, the newest
)

// Bundle collects what is needed to get help. If something can't be read, it says
// so in the bundle and continues. It changes nothing.
func Bundle(ctx context.Context, p *pipeline.Project, src Sources, now time.Time) *bundle.Bundle {
	name := "recast-support"
	if p != nil {
		name += "-" + p.Config.Cluster
	}
	g := &gathering{Project: p, src: src, out: bundle.New(name, now, src.secrets(p))}
	g.add("version.json", src.Version, bundle.List{"**"})
	g.config()
	if p != nil {
		g.lockFile()
		g.runsHere()
		g.world(ctx)
	}
	g.tell()
	return g.out
}

// gathering is a bundle in progress.
type gathering struct {
	*pipeline.Project
	src Sources
	out *bundle.Bundle

	mu       sync.Mutex
	problems []string
}

func (g *gathering) problem(what string, err error) {
	if err != nil {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.problems = append(g.problems, what+": "+err.Error())
	}
}

// add adds the allowed fields of v to the bundle.
func (g *gathering) add(name string, v any, allow bundle.List) {
	g.mu.Lock()
	err := g.out.JSON(name, v, allow)
	g.mu.Unlock()
	g.problem(name, err)
}

func (g *gathering) config() {
	if g.src.Config != nil {
		text, err := configAllowed.YAML(g.src.Config)
		g.problem("recast.yaml", err)
		g.out.Text("recast.yaml", text)
	}
	g.problem("recast.yaml can't be used", g.src.Invalid)
}

func (g *gathering) lockFile() {
	data, err := os.ReadFile(g.LockFile())
	if err == nil {
		var text []byte
		text, err = lockAllowed.YAML(data)
		g.out.Text("recast.lock", text)
	}
	g.problem("recast.lock", err)
	_, err = schematics.ReadLock(g.LockFile())
	g.problem("recast.lock can't be used", err)
}

// runsHere adds the last runs that were started on this machine: results, logs, and from
// their journals only the plan and the names of facts, since journals hold machine
// configurations.
func (g *gathering) runsHere() {
	runs, err := journal.Runs(g.Runs().Dir)
	g.problem("journals", err)
	g.add("runs.json", runs, bundle.List{"*.ID", "*.Started", "*.Finished", "*.Outcome"})
	for _, run := range runs[:min(len(runs), bundleRuns)] {
		dir := filepath.Join(g.Runs().Dir, run.ID)
		g.keys(run.ID)
		logs, err := filepath.Glob(filepath.Join(dir, "log*.jsonl"))
		g.problem("logs of run "+run.ID, err)
		for _, path := range logs {
			g.log(path, filepath.Join("runs", run.ID, filepath.Base(path)))
		}
	}
}

// keys lists the facts of a journal, by name.
func (g *gathering) keys(id string) {
	j, err := journal.Open(g.Runs().Dir, journal.Options{Run: id, ReadOnly: true})
	if err != nil {
		g.problem("journal of run "+id, err)
		return
	}
	defer j.Close()
	keys, err := j.Keys("")
	g.problem("journal of run "+id, err)
	g.out.Text(filepath.Join("runs", id, "keys.txt"), []byte(strings.Join(keys, "\n")+"\n"))
	for key, file := range map[string]string{past.PlanKey: "plan.json", past.FirstPlanKey: "plan-first.json"} {
		var plan planning.Plan
		if found, err := j.Get(key, &plan); err != nil {
			g.problem("plan of run "+id, err)
		} else if found {
			g.add(filepath.Join("runs", id, file), plan, planAllowed)
		}
	}
}

// log adds the newest part of a log, line by line. It omits an incomplete last line, which
// a kill may leave.
func (g *gathering) log(path, name string) {
	data, err := os.ReadFile(path)
	if err != nil {
		g.problem("log "+name, err)
		return
	}
	if len(data) > bundleLog {
		_, data, _ = bytes.Cut(data[len(data)-bundleLog:], []byte("\n"))
	}
	var out bytes.Buffer
	lines := bufio.NewScanner(bytes.NewReader(data))
	lines.Buffer(nil, bundleLog)
	for lines.Scan() {
		allow := logAllowed
		if byUsersProgram(lines.Bytes()) {
			allow = logOfPrograms
		}
		if line, ok := allow.Line(lines.Bytes()); ok {
			out.Write(append(line, '\n'))
		}
	}
	g.problem("log "+name, lines.Err())
	g.out.Lines(name, out.Bytes())
}

// byUsersProgram says whether a line may quote the output of a hook or a gate, which may
// contain secrets.
func byUsersProgram(line []byte) bool {
	return slices.ContainsFunc([]string{"hook", "ask-gates", "before-run", "after-run"}, func(word string) bool { return bytes.Contains(line, []byte(word)) })
}

// world queries all servers at the same time.
func (g *gathering) world(parent context.Context) {
	ctx, cancel := context.WithTimeoutCause(parent, bundleAsks, errors.New("the bundle waited no longer for it"))
	defer cancel()
	var asks sync.WaitGroup
	if g.src.Status != nil {
		asks.Go(func() {
			res, err := g.src.Status(ctx)
			g.problem("status", err)
			g.add("status.json", res, statusAllowed)
		})
	}
	if g.src.Doctor != nil {
		asks.Go(func() { g.add("doctor.json", withoutPrograms(g.src.Doctor(ctx)), doctorAllowed) })
	}
	if g.src.VMs != nil {
		asks.Go(func() {
			vms, err := g.src.VMs(ctx)
			g.problem("VMs", err)
			g.add("vms.json", g.ourVMs(vms), bundle.List{"**"})
		})
	}
	if g.src.Observe != nil {
		asks.Go(func() {
			seen, err := g.src.Observe(ctx)
			g.problem("nodes", err)
			if err == nil {
				g.add("nodes.json", nodesSeen(seen), bundle.List{"**"})
				g.add("etcd.json", g.etcdSeen(ctx, seen), bundle.List{"**"})
			}
		})
	}
	asks.Wait()
}

// withoutPrograms reduces a diagnosis: of the user's programs and webhooks it keeps only
// the number and the states.
func withoutPrograms(res checkup.Result) checkup.Result {
	res.Checks = slices.Clone(res.Checks)
	for i, c := range res.Checks {
		if c.Group == checkup.GroupHooks || c.Group == checkup.GroupGates || c.Group == checkup.GroupWebhooks {
			res.Checks[i].What, res.Checks[i].Seen, res.Checks[i].Remedy = bundle.LeftOut, bundle.LeftOut, nil
		}
	}
	return res
}

// tell lists what is in the bundle, and what could not be read.
func (g *gathering) tell() {
	slices.Sort(g.problems)
	if len(g.problems) > 0 {
		g.out.Text("unread.txt", []byte(strings.Join(g.problems, "\n")+"\n"))
	}
	var text strings.Builder
	text.WriteString(bundleReadme + "\nFiles:\n")
	for _, f := range g.out.Files() {
		text.WriteString(fmt.Sprintf("  %s (%d bytes)\n", f.Name, len(f.Data)))
	}
	g.out.Text("README.txt", []byte(text.String()))
}

const bundleReadme = `Support bundle of recast. Review it before you share it.

It contains only fields that are allowed by name. Known secrets, and text that looks like
a secret, were removed from these. It does not contain: the Proxmox token, talosconfig,
kubeconfig, machine configurations, the commands and output of your hooks and gates,
cloud-init users, passwords and keys, and notes of VMs other than recast's own records.
From the journal of a run it has only its result (runs.json), the names of its facts
(keys.txt), its plan (plan.json; plan-first.json is the original plan of a run that was
continued) and its log.

It does contain: names and addresses of nodes and hosts, disks and their storages,
versions, what recast did and when, and why it failed.
`
