package pipeline

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/access"
	"github.com/recast-sh/recast/cluster/doctor"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/words"
	"github.com/recast-sh/recast/schematics"
)

// DoctorResult is everything that a roll needs and what is missing.
type DoctorResult struct {
	Cluster string  `json:"cluster"`
	Checks  []Check `json:"checks"`
	// Needs are the privileges that a roll needs, and Grants the commands that grant missing ones.
	Needs   []NeedStatus        `json:"needs"`
	Version string              `json:"proxmoxVersion,omitempty"` // of the node that answered; "": it could not be read
	Grants  []string            `json:"grants,omitempty"`
	Caution string              `json:"caution,omitempty"` // before the grants are given
	Nodes   []doctor.Assessment `json:"nodes"`
}

// State is the result of a check.
type State string

// The states of a check.
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
	access.Need
	Granted bool `json:"granted"`
}

// DoctorSources are the clients for Doctor. A client that could not be opened is nil, and
// its error is beside it.
type DoctorSources struct {
	Proxmox      Hypervisor
	ErrProxmox   error
	Endpoints    []Endpoint
	Talos        cluster.Talos
	ErrTalos     error
	TalosExpires time.Time          // of our certificate; zero: there is none
	Files        cluster.FileReader // of the machines; set whenever Talos is
	Kube         cluster.Kube
	ErrKube      error
	KubeExpires  time.Time
	Objects      cluster.ObjectJudge // set whenever Kube is
	Images       Images
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

// checkup is a diagnosis in progress.
type checkup struct {
	Project
	src    DoctorSources
	res    DoctorResult
	wanted []cluster.Wanted
	lock   schematics.Lock
	hosts  []cluster.Host

	survey  doctor.Survey
	missing access.Missing // of the token's privileges
}

// Doctor checks everything that a roll needs and reports problems. It continues if
// something can't be read, and changes nothing.
func Doctor(ctx context.Context, p Project, src DoctorSources) DoctorResult {
	d := &checkup{Project: p, src: src, res: DoctorResult{Cluster: p.Config.Cluster, Nodes: []doctor.Assessment{}, Needs: []NeedStatus{}}}
	errLock := d.readLock()
	d.say("the Proxmox API")
	reached := d.endpoints(ctx) && d.readHosts(ctx)
	d.say("Proxmox, Talos and Kubernetes")
	d.lookAround(ctx, reached)
	if reached {
		d.proxmox(ctx)
		d.res.Nodes = d.survey.Assess(d.wanted, d.Policy(cluster.Policy{}))
		d.privileges(ctx)
		d.say("the storages")
		d.storages(ctx)
	}
	d.talos()
	d.etcd(ctx)
	d.kubernetes()
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
	if d.lock, err = d.Project.Lock(); err != nil { // use what a future lock will have
		im := d.Config.Images
		d.lock = schematics.Lock{Arch: im.Arch, Platform: im.Platform, SecureBoot: im.SecureBoot}
	}
	d.wanted = d.Project.Wanted(d.lock)
	return err
}

func (d *checkup) lookAround(ctx context.Context, reached bool) {
	ctx, cancel := context.WithTimeout(ctx, askWorld)
	defer cancel()
	src := cluster.Sources{Proxmox: d.src.Proxmox, Talos: d.src.Talos, Kube: d.src.Kube, Cluster: d.Config.Cluster}
	if !reached {
		src.Proxmox = nil
	}
	d.survey = doctor.LookAround(ctx, src, d.wanted)
}

func (d *checkup) add(c Check) { d.res.Checks = append(d.res.Checks, c) }

func (d *checkup) ok(group, what, format string, args ...any) {
	d.add(Check{Group: group, What: what, State: OK, Seen: fmt.Sprintf(format, args...)})
}

func (d *checkup) warn(group, what, remedy, format string, args ...any) {
	d.add(Check{Group: group, What: what, State: Warning, Seen: fmt.Sprintf(format, args...), Remedy: remedies(remedy)})
}

// refuse adds a problem because of which a roll would refuse to start.
func (d *checkup) refuse(group, what, remedy, format string, args ...any) {
	d.add(Check{Group: group, What: what, State: Problem, Seen: fmt.Sprintf(format, args...), Remedy: remedies(remedy), kind: fault.Refused})
}

// fail adds a problem from an error, with its hints.
func (d *checkup) fail(group, what string, err error) {
	d.add(Check{Group: group, What: what, State: Problem, Seen: err.Error(), Remedy: fault.Hints(err), kind: fault.KindOf(err)})
}

func remedies(text string) []string {
	if text == "" {
		return nil
	}
	return []string{text}
}

// Err returns an error with the kind of the worst problem; nil if there is none. Things
// that could not be read are worse than refusals, as they may hide more problems.
func (r DoctorResult) Err() error {
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
	return fault.DoctorFound.Of(fault.As(kind, fmt.Errorf("%d %s would prevent a roll", problems, words.Plural(problems, "problem"))))
}

func severity(k fault.Kind) int {
	return slices.Index([]fault.Kind{fault.Refused, fault.Failed, fault.Config}, k)
}

// endpoints asks every configured address separately: a roll that fails over to one must
// find the same cluster there. It says whether any answers.
func (d *checkup) endpoints(ctx context.Context) (reached bool) {
	if d.src.ErrProxmox != nil {
		d.fail(GroupProxmox, "API", d.src.ErrProxmox)
		return false
	}
	type answer struct {
		hosts []cluster.Host
		err   error
	}
	answers := make([]answer, len(d.src.Endpoints))
	var asking sync.WaitGroup
	for i, e := range d.src.Endpoints {
		asking.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, askEndpoint)
			defer cancel()
			answers[i].hosts, answers[i].err = e.Hosts(ctx)
		})
	}
	asking.Wait()
	var first []string
	for i, e := range d.src.Endpoints {
		a := answers[i]
		names := hostNames(a.hosts)
		switch {
		case a.err != nil:
			d.fail(GroupProxmox, e.URL, a.err)
			continue
		case first == nil:
			first = names
		case !slices.Equal(first, names):
			d.add(Check{
				Group: GroupProxmox, What: e.URL, State: Problem, kind: fault.Config,
				Seen:   fmt.Sprintf("belongs to another cluster: it knows %s, the first one %s", strings.Join(names, ", "), strings.Join(first, ", ")),
				Remedy: []string{"proxmox.endpoints are nodes of one Proxmox cluster"},
			})
			continue
		}
		reached = true
		d.ok(GroupProxmox, e.URL, "answers as %s", cmp.Or(entry(a.hosts), "one of "+strings.Join(names, ", ")))
	}
	return reached
}

// readHosts reads the details of each host, and says whether it could.
func (d *checkup) readHosts(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, askWorld)
	defer cancel()
	var err error
	if d.hosts, err = d.src.Proxmox.Hosts(ctx); err != nil {
		d.fail(GroupProxmox, "nodes", err)
	}
	return err == nil
}

func hostNames(hosts []cluster.Host) []string {
	var names []string
	for _, h := range hosts {
		names = append(names, h.Name)
	}
	slices.Sort(names)
	return names
}

func entry(hosts []cluster.Host) string {
	for _, h := range hosts {
		if h.Entry {
			return h.Name
		}
	}
	return ""
}

// errsOf flattens an error of errors.Join.
func errsOf(err error) []error {
	if err == nil {
		return nil
	}
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		var out []error
		for _, e := range joined.Unwrap() {
			out = append(out, errsOf(e)...)
		}
		return out
	}
	return []error{err}
}
