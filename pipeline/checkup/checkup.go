// Package checkup is recast doctor: it checks everything that a roll needs, and says what is
// missing and how to fix it. [Run] does all of it, and changes nothing; [Result] is what it found.
package checkup

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/observe"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/cluster/rolling"
	"github.com/recast-sh/recast/cluster/strategy"
	"github.com/recast-sh/recast/cluster/survey"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/words"
	"github.com/recast-sh/recast/pipeline"
	"github.com/recast-sh/recast/schematics"
)

// Sources are the clients for Run. A client that could not be opened is nil, and its error is beside it.
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

func (d *checkup) hostsOfNodes() []string {
	hosts := cluster.Each(d.survey.Found, func(f observe.Found) string { return f.Host() })
	slices.Sort(hosts)
	return cluster.Where(slices.Compact(hosts), func(host string) bool { return host != "" })
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

const askGate = 30 * time.Second

// gates checks every gate about objects once. Programs are only looked for, since they are run for a node.
func (d *checkup) gates(ctx context.Context) {
	for _, g := range d.Gates() {
		switch {
		case g.Command != nil:
			when := "before each node, and when it is back"
			if g.BeforeOnly {
				when = "before each node"
			}
			d.runnable(GroupGates, g.String(), "roll.gates", when, *g.Command)
		case d.src.Objects == nil || d.survey.Kubernetes != nil:
			// reported already
		default:
			d.gate(ctx, g)
		}
	}
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

func (d *checkup) talos() {
	d.certificate(GroupTalos, "talosconfig", "an admin of the cluster can create a new one with talosctl config new", d.src.TalosExpires)
	if d.src.ErrTalos != nil {
		d.fail(GroupTalos, "talosconfig", d.src.ErrTalos)
		return
	}
	if d.survey.Talos != nil {
		d.fail(GroupTalos, "API", d.survey.Talos)
	} else {
		d.ok(GroupTalos, "API", "answers")
	}
	for _, f := range d.survey.Found {
		for _, err := range f.Errs {
			if d.survey.Talos == nil || f.Addr.IsValid() {
				d.fail(GroupTalos, f.Name, err)
			}
		}
		if f.Machine != nil {
			d.talosVersion(f.Name, f.Machine.TalosVersion)
		}
	}
}

// etcd reports problems of etcd: with them, a roll refuses to take a control plane down.
func (d *checkup) etcd(ctx context.Context) {
	if d.src.Talos == nil || d.survey.Talos != nil || d.survey.Kubernetes != nil {
		return // reported already
	}
	ctx, cancel := context.WithTimeout(ctx, askWorld)
	defer cancel()
	troubles := d.survey.EtcdTroubles(ctx, d.src.Talos, d.src.Files)
	for _, err := range troubles {
		d.fail(GroupTalos, "etcd", err)
	}
	if len(troubles) == 0 {
		d.ok(GroupTalos, "etcd", "every control plane is a healthy member")
	}
}

// talosVersion compares a machine with the configuration. Talos can be upgraded by one
// minor version at a time, and can't be downgraded.
func (d *checkup) talosVersion(node, runs string) {
	wanted := d.Config.Talos.Version
	a, aKnown := minorOf(runs)
	b, bKnown := minorOf(wanted)
	switch {
	case !aKnown || !bKnown:
		d.warn(GroupTalos, node, "", "runs Talos %s", runs)
	case b < a:
		d.warn(GroupTalos, node, "set talos.version to a newer one: Talos does not support downgrades", "runs Talos %s, and %s is wanted", runs, wanted)
	case b > a+1:
		d.warn(GroupTalos, node, "upgrade one minor version at a time", "runs Talos %s, and %s is wanted: that skips a minor version", runs, wanted)
	default:
		d.ok(GroupTalos, node, "runs Talos %s", runs)
	}
}

// minorOf turns "v1.13.9" into 1013.
func minorOf(version string) (int, bool) {
	parts := strings.SplitN(strings.TrimPrefix(version, "v"), ".", 3)
	if len(parts) < 3 {
		return 0, false
	}
	major, errMajor := strconv.Atoi(parts[0])
	minor, errMinor := strconv.Atoi(parts[1])
	return major*1000 + minor, errMajor == nil && errMinor == nil
}

func (d *checkup) kubernetes() {
	d.certificate(GroupKubernetes, "kubeconfig", "fetch a fresh one: talosctl kubeconfig", d.src.KubeExpires)
	switch {
	case d.src.ErrKube != nil:
		d.fail(GroupKubernetes, "kubeconfig", d.src.ErrKube)
		return
	case d.survey.Kubernetes != nil:
		d.fail(GroupKubernetes, "API", d.survey.Kubernetes)
		return
	}
	heed := planning.Heed{Ignore: d.Config.Roll.IgnoreNodes}
	for _, n := range d.Config.Nodes {
		heed.Known = append(heed.Known, n.Name)
	}
	versions := map[string]int{}
	for _, n := range d.survey.Observation.Nodes {
		versions[n.KubeletVersion]++
		switch why := heed.Excuse(n); {
		case n.Ready:
		case why == "":
			d.warn(GroupKubernetes, n.Name, "a roll starts only while the others are healthy", "is not Ready")
		default:
			d.warn(GroupKubernetes, n.Name, "workers are rolled nevertheless", "is not Ready (%s)", why)
		}
	}
	seen := cluster.Each(slices.Sorted(maps.Keys(versions)), func(v string) string {
		return fmt.Sprintf("%s on %s", v, words.Counted(versions[v], "node"))
	})
	if len(versions) > 1 {
		d.warn(GroupKubernetes, "API", "recast upgrade-k8s brings all nodes to one version", "answers; kubelets run %s", strings.Join(seen, ", "))
		return
	}
	d.ok(GroupKubernetes, "API", "answers; kubelets run %s", strings.Join(seen, ", "))
}

func (d *checkup) images(ctx context.Context, errLock error) {
	if errLock != nil {
		d.fail(GroupImages, "lock", errLock)
	} else {
		d.ok(GroupImages, "lock", "%s, %d schematics", d.lock.Talos, len(d.lock.Schematics))
	}
	if d.src.ErrImages != nil {
		d.fail(GroupImages, "clients", d.src.ErrImages)
		return
	}
	ctx, cancel := context.WithTimeout(ctx, askImages)
	defer cancel()
	version := cmp.Or(d.lock.Talos, d.Config.Talos.Version)
	if list, err := d.src.Images.Factory.Extensions(ctx, version); err != nil {
		d.fail(GroupImages, "factory", err)
	} else {
		d.ok(GroupImages, "factory", "%s has %d extensions for Talos %s", d.Config.Images.Factory, len(list), version)
	}
	if list, err := d.src.Images.Catalog.Official(ctx, version); err != nil {
		d.fail(GroupImages, "registry", err)
	} else {
		d.ok(GroupImages, "registry", "%s lists %d extensions for Talos %s", d.Config.Images.Extensions, len(list), version)
	}
	if !slices.ContainsFunc(d.lock.Names(), d.ByImager) {
		return
	}
	if what, err := d.src.Images.Imager.Ready(ctx); err != nil {
		d.fail(GroupImages, "imager", err)
	} else {
		d.ok(GroupImages, "imager", "%s", what)
	}
}

// nodes reports for each node which strategies are possible.
func (d *checkup) nodes() {
	for _, err := range d.survey.Shared {
		d.fail(GroupNodes, "VMs", err)
	}
	d.neighbours()
	for i, a := range d.res.Nodes {
		if err := d.survey.Unread[i]; err != nil {
			d.unreadNode(a, err)
		}
		if err := strategy.Uncontrolled(d.survey.Found[i].Node); err != nil {
			d.fail(GroupNodes, a.Node, fault.WithHint(err, "remove it from recast.yaml: recast leaves it alone then"))
			continue
		}
		d.node(a)
	}
}

// unreadNode reports a node that could not be read; as a problem only if it does not follow from another problem.
func (d *checkup) unreadNode(a survey.Assessment, err error) {
	blind := slices.ContainsFunc(d.missing.Lacks, func(l survey.Lack) bool { return l.Privilege == "VM.Audit" })
	switch {
	case blind && a.VMID == 0:
		d.warn(GroupNodes, a.Node, "", "its VM can't be seen without VM.Audit on /vms")
	case fault.KindOf(err) == fault.Refused && len(d.missing.Lacks) > 0, d.survey.Kubernetes != nil:
		d.warn(GroupNodes, a.Node, "", "%s", err)
	default:
		d.fail(GroupNodes, a.Node, err)
	}
}

func (d *checkup) node(a survey.Assessment) {
	switch {
	case a.Strategy.From() == cluster.Nowhere && len(a.Refused) > 0:
		d.refuse(GroupNodes, a.Node, "", "%s", strings.Join(a.Refused, "; "))
		return
	case a.Strategy.From() == cluster.Nowhere:
		d.ok(GroupNodes, a.Node, "a new VM on %s: %s", a.Host, a.Why)
		return
	case a.VMID == 0:
		return // reported already
	}
	vm := fmt.Sprintf("VM %d on %s", a.VMID, a.Host)
	switch {
	case a.Unread && len(a.Refused) > 0:
		d.refuse(GroupNodes, a.Node, "", "%s: its machine could not be read; %s", vm, strings.Join(a.Refused, "; "))
	case a.Unread:
		d.warn(GroupNodes, a.Node, "", "%s: its machine could not be read%s", vm, against(a))
	case len(a.Refused) > 0:
		d.refuse(GroupNodes, a.Node, "", "%s: %s", vm, strings.Join(a.Refused, "; "))
	default:
		notes := ""
		if more := slices.Concat(a.WillLose, a.Notes); len(more) > 0 {
			notes = "; " + strings.Join(more, "; ")
		}
		d.ok(GroupNodes, a.Node, "%s: %s%s", vm, a.Why, notes)
	}
}

// against lists what rules out which strategy, for a node that could not be read.
func against(a survey.Assessment) string {
	var out strings.Builder
	for _, s := range cluster.Strategies {
		if s.Replaces() && len(a.Against[s]) > 0 {
			fmt.Fprintf(&out, "; against %s: %s", s, strings.Join(a.Against[s], "; "))
		}
	}
	return out.String()
}
