package checkup

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/recast-sh/recast/cluster/planning"
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
