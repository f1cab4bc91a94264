// Package checkup is recast doctor: it checks everything that a roll needs, and says what is
// missing and how to fix it. [Run] does all of it, and changes nothing; [Result] is what it found.
package checkup

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/hook"
	"github.com/recast-sh/recast/cluster/observe"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/cluster/survey"
	"github.com/recast-sh/recast/cluster/usergate"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/words"
	"github.com/recast-sh/recast/pipeline"
	"github.com/recast-sh/recast/schematics"
)

// Sources are the clients for Run. A client that could not be opened is nil, and
// its error is beside it.
type Sources struct {
	Proxmox      pipeline.Hypervisor
	ErrProxmox   error
	Endpoints    []Endpoint
	Talos        cluster.TalosReader
	ErrTalos     error
	TalosExpires time.Time          // of our certificate; zero: there is none
	Files        cluster.FileReader // of the machines; set whenever Talos is
	Kube         cluster.KubeReader
	ErrKube      error
	KubeExpires  time.Time
	Objects      cluster.ObjectJudge // set whenever Kube is
	Images       pipeline.Images
	ErrImages    error
	Webhooks     []Webhook
	// Say is called with what is being checked; may be nil.
	Say func(text string)
}

// Endpoint is a client for one of the configured API addresses.
type Endpoint struct {
	URL string
	// Hosts lists the hosts and which of them answers; their details are not needed.
	Hosts func(ctx context.Context) ([]cluster.Host, error)
}

// Timeouts of the parts.
const (
	askEndpoint = 20 * time.Second
	askWorld    = 90 * time.Second
	askImages   = 30 * time.Second
)

type checkup struct {
	findings
	pipeline.Project
	src    Sources
	wanted []cluster.Wanted
	lock   schematics.Lock
	hosts  []cluster.Host

	survey  survey.Survey
	missing survey.Missing // of the token's privileges
}

// Run checks everything that a roll needs and reports problems. It continues if
// something can't be read, and changes nothing.
func Run(ctx context.Context, p pipeline.Project, src Sources) Result {
	d := &checkup{Project: p, src: src}
	d.res = Result{Cluster: p.Config.Cluster, Nodes: []survey.Assessment{}, Needs: []NeedStatus{}}
	errLock := d.readLock()
	d.say("the Proxmox API")
	reached := d.endpoints(ctx) && d.readHosts(ctx)
	d.say("Proxmox, Talos and Kubernetes")
	d.lookAround(ctx, reached)
	if reached {
		d.proxmox(ctx)
		d.res.Nodes = d.survey.Assess(d.wanted, d.Policy(planning.Policy{}))
		d.privileges(ctx)
		d.say("the storages")
		d.storages(ctx)
	}
	d.talos()
	d.etcd(ctx)
	d.kubernetes()
	d.replication(ctx)
	d.gates(ctx)
	d.hooks()
	d.webhooks()
	d.say("the Image Factory and the registry")
	d.images(ctx, errLock)
	if reached {
		d.nodes()
	}
	return d.res
}

func (d *checkup) say(text string) {
	if d.src.Say != nil {
		d.src.Say("looking at " + text)
	}
}

func (d *checkup) readLock() error {
	var err error
	if d.lock, err = d.Lock(); err != nil { // use what a future lock will have
		im := d.Config.Images
		d.lock = schematics.Lock{Arch: im.Arch, Platform: im.Platform, SecureBoot: im.SecureBoot}
	}
	d.wanted = d.Wanted(d.lock)
	return err
}

func (d *checkup) lookAround(ctx context.Context, reached bool) {
	ctx, cancel := context.WithTimeout(ctx, askWorld)
	defer cancel()
	src := observe.Sources{Proxmox: d.src.Proxmox, Talos: d.src.Talos, Kube: d.src.Kube, Cluster: d.Config.Cluster}
	if !reached {
		src.Proxmox = nil
	}
	d.survey = survey.LookAround(ctx, src, d.wanted)
}

// hostsOfNodes returns the hosts that have nodes, sorted.
func (d *checkup) hostsOfNodes() []string {
	var out []string
	for _, f := range d.survey.Found {
		if host := f.Host(); host != "" && !slices.Contains(out, host) {
			out = append(out, host)
		}
	}
	slices.Sort(out)
	return out
}

// Result is everything that a roll needs and what is missing.
type Result struct {
	Cluster string  `json:"cluster"`
	Checks  []Check `json:"checks"`
	// Needs are the privileges that a roll needs, and Grants the commands that grant missing ones.
	Needs   []NeedStatus        `json:"needs"`
	Version string              `json:"proxmoxVersion,omitempty"` // of the node that answered; "": it could not be read
	Grants  []string            `json:"grants,omitempty"`
	Caution string              `json:"caution,omitempty"` // before the grants are given
	Nodes   []survey.Assessment `json:"nodes"`
}

type State string

const (
	OK      State = "ok"
	Warning State = "warning"
	Problem State = "problem"
)

// Groups of checks, in display order.
const (
	GroupProxmox    = "Proxmox"
	GroupPrivileges = "privileges"
	GroupStorage    = "storage"
	GroupTalos      = "Talos"
	GroupKubernetes = "Kubernetes"
	GroupGates      = "gates"
	GroupHooks      = "hooks"
	GroupWebhooks   = "webhooks"
	GroupImages     = "images"
	GroupNodes      = "nodes"
)

// Check is one thing that was checked.
type Check struct {
	Group  string   `json:"group"`
	What   string   `json:"what"`
	State  State    `json:"state"`
	Seen   string   `json:"seen"`
	Remedy []string `json:"remedy,omitempty"`

	kind fault.Kind // of a problem
}

// NeedStatus is a privilege that a roll needs, and whether the token has it.
type NeedStatus struct {
	survey.Need
	Granted bool `json:"granted"`
}

type findings struct{ res Result }

func (f *findings) add(c Check) { f.res.Checks = append(f.res.Checks, c) }

func (f *findings) ok(group, what, format string, args ...any) {
	f.add(Check{Group: group, What: what, State: OK, Seen: fmt.Sprintf(format, args...)})
}

func (f *findings) warn(group, what, remedy, format string, args ...any) {
	f.add(Check{Group: group, What: what, State: Warning, Seen: fmt.Sprintf(format, args...), Remedy: remedies(remedy)})
}

// refuse adds a problem because of which a roll would refuse to start.
func (f *findings) refuse(group, what, remedy, format string, args ...any) {
	f.add(Check{Group: group, What: what, State: Problem, Seen: fmt.Sprintf(format, args...), Remedy: remedies(remedy), kind: fault.Refused})
}

// fail adds a problem from an error, with its hints.
func (f *findings) fail(group, what string, err error) {
	f.add(Check{Group: group, What: what, State: Problem, Seen: err.Error(), Remedy: fault.Hints(err), kind: fault.KindOf(err)})
}

func (f *findings) certificate(group, what, remedy string, expires time.Time) {
	left := time.Until(expires)
	switch {
	case expires.IsZero():
	case left < 0:
		f.add(Check{Group: group, What: what, State: Problem, Seen: "expired on " + expires.Format(time.DateOnly), Remedy: []string{remedy}, kind: fault.Config})
	case left < expiresSoon:
		f.warn(group, what, remedy, "expires on %s", expires.Format(time.DateOnly))
	default:
		f.ok(group, what, "valid until %s", expires.Format(time.DateOnly))
	}
}

// expiresSoon is how long before a certificate's end doctor warns.
const expiresSoon = 30 * 24 * time.Hour

func remedies(text string) []string {
	if text == "" {
		return nil
	}
	return []string{text}
}

// Err returns an error with the kind of the worst problem; nil if there is none. Things
// that could not be read are worse than refusals, as they may hide more problems.
func (r Result) Err() error {
	problems, kind := 0, fault.Refused
	for _, c := range r.Checks {
		if c.State != Problem {
			continue
		}
		problems++
		if severity(c.kind) > severity(kind) {
			kind = c.kind
		}
	}
	if problems == 0 {
		return nil
	}
	return fault.DoctorFound.Of(fault.As(kind, fmt.Errorf("%s would prevent a roll", words.Counted(problems, "problem"))))
}

func severity(k fault.Kind) int {
	return slices.Index([]fault.Kind{fault.Refused, fault.Failed, fault.Config}, k)
}

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
	holds, seen, err := usergate.Ask{Objects: d.src.Objects}.Look(ctx, g)
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
	for _, point := range hook.Points() {
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
