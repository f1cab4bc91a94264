package checkup

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/cluster/strategy"
	"github.com/recast-sh/recast/cluster/survey"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/words"
)

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
	var seen []string
	for _, v := range slices.Sorted(maps.Keys(versions)) {
		seen = append(seen, fmt.Sprintf("%s on %s", v, words.Counted(versions[v], "node")))
	}
	if len(versions) > 1 {
		d.warn(GroupKubernetes, "API", "recast upgrade-k8s brings all nodes to one version", "answers; kubelets run %s", strings.Join(seen, ", "))
		return
	}
	d.ok(GroupKubernetes, "API", "answers; kubelets run %s", strings.Join(seen, ", "))
}

// images checks the lock, and the services that build its images.
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

// unreadNode reports a node that could not be read; as a problem only if it does not
// follow from another one.
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
