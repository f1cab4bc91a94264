package kube

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path"
	"slices"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/foreign"
)

// nodesAtOnce bounds how many nodes are asked for at once.
const nodesAtOnce = 8

// LocalData lists, for each of the nodes, what is on that very node and nowhere else,
// by name. Storage systems that are not installed have none; one that can't be read is
// an error.
func (c *Client) LocalData(ctx context.Context, nodes ...string) (map[string][]cluster.LocalData, error) {
	all, of := c.storage(ctx), make([][]cluster.LocalData, len(nodes))
	g := errgroup.Group{}
	g.SetLimit(nodesAtOnce)
	for i, node := range nodes {
		g.Go(func() error {
			n, err := c.node(ctx, node)
			if err == nil {
				of[i], err = c.localData(ctx, n, all)
			}
			if err != nil {
				return fmt.Errorf("local data of node %s: %w", node, err)
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	data := map[string][]cluster.LocalData{}
	for i, node := range nodes {
		slices.SortStableFunc(of[i], func(a, b cluster.LocalData) int { return cmp.Compare(a.Name, b.Name) })
		data[node] = of[i]
	}
	return data, nil
}

// storage is what is the same for every node. What could not be read is an error of each.
type storage struct {
	groups     []metav1.APIGroup
	volumes    []corev1.PersistentVolume
	errGroups  error
	errVolumes error
}

func (c *Client) storage(ctx context.Context) (s storage) {
	s.groups, s.errGroups = c.groups(ctx)
	list, err := c.api.CoreV1().PersistentVolumes().List(ctx, metav1.ListOptions{})
	if err != nil {
		s.errVolumes = fmt.Errorf("list persistent volumes: %w", c.translate(err))
		return s
	}
	s.volumes = list.Items
	return s
}

func (c *Client) localData(ctx context.Context, n *corev1.Node, all storage) ([]cluster.LocalData, error) {
	if all.errGroups != nil {
		return nil, errors.Join(all.errVolumes, all.errGroups)
	}
	pools, errPools := c.linstorPools(ctx, n, all.groups)
	longhorn, ofLonghorn, errLonghorn := c.longhornDisks(ctx, n, all.groups)
	rook, ofRook, errRook := c.rookDirectories(ctx, n, all.groups)
	paths, errPaths := c.hostPaths(ctx, n, slices.Concat(ofLonghorn, ofRook))
	data := slices.Concat(localVolumes(n, all.volumes, pools), pools, longhorn, rook)
	for _, p := range paths {
		if !slices.ContainsFunc(data, func(d cluster.LocalData) bool { return d.Path != "" && path.Clean(d.Path) == p.Path }) {
			data = append(data, p)
		}
	}
	return data, errors.Join(errPools, all.errVolumes, errLonghorn, errRook, errPaths)
}

// localVolumes are those of the volumes that are on the node; pools are those that
// LINSTOR has there.
func localVolumes(n *corev1.Node, volumes []corev1.PersistentVolume, pools []cluster.LocalData) (data []cluster.LocalData) {
	for i := range volumes {
		pv := &volumes[i]
		path, local := localTo(n, pv)
		if !local || !holdsData(pv) {
			continue
		}
		for _, place := range places(pv, path, pools) {
			place.Name, place.What = "pv/"+pv.Name, foreign.Line(describe(pv))
			data = append(data, place)
		}
	}
	return data
}

// holdsData says whether somebody's data is on the volume: a claim has it, or
// had it and the volume is to be kept.
func holdsData(pv *corev1.PersistentVolume) bool {
	switch pv.Status.Phase {
	case corev1.VolumeBound:
		return true
	case corev1.VolumeReleased, corev1.VolumeFailed:
		return pv.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimRetain
	}
	return false
}

// localTo says whether the volume is, or may be, on this node only, and where.
// A hostPath volume without affinity is wherever its pod happened to run. Local
// CSI drivers (TopoLVM, OpenEBS' LVM and ZFS) pin theirs to the node by its name.
func localTo(n *corev1.Node, pv *corev1.PersistentVolume) (path string, local bool) {
	var required *corev1.NodeSelector
	if pv.Spec.NodeAffinity != nil {
		required = pv.Spec.NodeAffinity.Required
	}
	switch source := pv.Spec.PersistentVolumeSource; {
	case source.Local != nil:
		return source.Local.Path, allows(required, n)
	case source.HostPath != nil:
		return source.HostPath.Path, allows(required, n)
	}
	return "", pins(required, n)
}

// pooled are the CSI drivers whose volumes are in LVM or ZFS: what of it, and the
// attribute of the volume that names its group or pool. TopoLVM keeps that name in
// the configuration of its lvmd.
var pooled = map[string]struct{ format, attribute string }{
	"topolvm.io":           {format: cluster.FormatLVM},
	"topolvm.cybozu.com":   {format: cluster.FormatLVM},                                   // its name before 0.10
	"local.csi.openebs.io": {format: cluster.FormatLVM, attribute: "openebs.io/volgroup"}, // lvm-localpv, pkg/driver/controller.go, CreateVolume
	"zfs.csi.openebs.io":   {format: cluster.FormatZFS, attribute: "openebs.io/poolname"}, // zfs-localpv, likewise
}

// linstorDriver has volumes in the pools that LINSTOR has on the node; which of
// them a volume is in, its PersistentVolume does not say.
const linstorDriver = "linstor.csi.linbit.com"

// places are where the volume may be, as far as it tells: none of them has a name.
func places(pv *corev1.PersistentVolume, path string, pools []cluster.LocalData) []cluster.LocalData {
	csi := pv.Spec.CSI
	switch {
	case csi == nil:
		return []cluster.LocalData{{Path: path}}
	case csi.Driver == linstorDriver && len(pools) > 0:
		return slices.Clone(pools)
	}
	driver := pooled[csi.Driver]
	return []cluster.LocalData{{Format: driver.format, Group: csi.VolumeAttributes[driver.attribute]}}
}

func describe(pv *corev1.PersistentVolume) string {
	claim := "no claim"
	if ref := pv.Spec.ClaimRef; ref != nil {
		claim = fmt.Sprintf("claim %s/%s", ref.Namespace, ref.Name)
	}
	if pv.Status.Phase != corev1.VolumeBound {
		claim = "kept after its release, " + claim
	}
	if pv.Spec.HostPath != nil && pv.Spec.NodeAffinity == nil {
		claim += ", on any node"
	}
	return fmt.Sprintf("PersistentVolume %s (%s)", pv.Name, claim)
}

// allows says whether the volume may be used on the node: one term must match,
// as for the scheduler. No selector allows all.
func allows(s *corev1.NodeSelector, n *corev1.Node) bool {
	if s == nil {
		return true
	}
	byName := labels.Set{metav1.ObjectNameField: n.Name}
	return slices.ContainsFunc(s.NodeSelectorTerms, func(t corev1.NodeSelectorTerm) bool {
		if len(t.MatchExpressions)+len(t.MatchFields) == 0 {
			return false
		}
		differs := func(set labels.Set) func(corev1.NodeSelectorRequirement) bool {
			return func(r corev1.NodeSelectorRequirement) bool { return !meets(set, r) }
		}
		return !slices.ContainsFunc(t.MatchExpressions, differs(n.Labels)) && !slices.ContainsFunc(t.MatchFields, differs(byName))
	})
}

// meets says whether the labels meet a requirement. One that can't be read is
// met: it might be.
func meets(set labels.Set, r corev1.NodeSelectorRequirement) bool {
	operators := map[corev1.NodeSelectorOperator]selection.Operator{
		corev1.NodeSelectorOpIn: selection.In, corev1.NodeSelectorOpNotIn: selection.NotIn,
		corev1.NodeSelectorOpExists: selection.Exists, corev1.NodeSelectorOpDoesNotExist: selection.DoesNotExist,
		corev1.NodeSelectorOpGt: selection.GreaterThan, corev1.NodeSelectorOpLt: selection.LessThan,
	}
	requirement, err := labels.NewRequirement(r.Key, operators[r.Operator], r.Values)
	return err != nil || requirement.Matches(set)
}

// pins says whether the volume can be used on this node and no other: each term
// has a requirement that is for the node's own name. Labels that several nodes
// may share, such as a zone, pin nothing.
func pins(s *corev1.NodeSelector, n *corev1.Node) bool {
	if s == nil || len(s.NodeSelectorTerms) == 0 {
		return false
	}
	names := []string{n.Name, cmp.Or(n.Labels[corev1.LabelHostname], n.Name)}
	itself := func(r corev1.NodeSelectorRequirement) bool {
		return r.Operator == corev1.NodeSelectorOpIn && len(r.Values) == 1 && slices.Contains(names, r.Values[0])
	}
	return !slices.ContainsFunc(s.NodeSelectorTerms, func(t corev1.NodeSelectorTerm) bool {
		return !slices.ContainsFunc(t.MatchExpressions, itself) && !slices.ContainsFunc(t.MatchFields, itself)
	})
}
