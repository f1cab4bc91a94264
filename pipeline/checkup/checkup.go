// Package checkup is recast doctor: it checks everything that a roll needs, and says what is
// missing and how to fix it. [Run] does all of it, and changes nothing; [Result] is what it found.
package checkup

import (
	"context"
	"slices"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/observe"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/cluster/survey"
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

// checkup is a diagnosis in progress.
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
