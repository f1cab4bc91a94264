package kube

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/foreign"
)

// LocalData lists, by name, the data that exists on only one of the nodes, for each node. A storage system that is not
// installed has none; a system that cannot be read is an error. Each call lists everything anew, once for all nodes.
func (c *Client) LocalData(ctx context.Context, nodes ...cluster.KubeNode) (map[string][]cluster.LocalData, error) {
	groups, err := c.groups(ctx)
	return c.localData(ctx, groups, err, nodes)
}

// localData is LocalData with a list of the API groups, or with the error of reading the list.
func (c *Client) localData(ctx context.Context, groups []metav1.APIGroup, errGroups error, nodes []cluster.KubeNode) (map[string][]cluster.LocalData, error) {
	l := newLocalScan(c, nodes)
	var errPools, errMayastor, errVolumes, errLonghorn, errRook, errPaths error
	var g sync.WaitGroup
	g.Go(func() {
		if errGroups == nil {
			errPools, errMayastor = l.linstorPools(ctx, groups), l.mayastorPools(ctx, groups)
		}
		errVolumes = l.localVolumes(ctx)
	})
	g.Go(func() {
		if errGroups == nil {
			errLonghorn, errRook = l.longhornDisks(ctx, groups), l.rookDirectories(ctx, groups)
			errPaths = l.hostPaths(ctx)
		}
	})
	g.Wait()
	if err := errors.Join(errGroups, errPools, errMayastor, errVolumes, errLonghorn, errRook, errPaths); err != nil {
		return nil, fmt.Errorf("look for data on nodes: %w", err)
	}
	data := make(map[string][]cluster.LocalData, len(nodes))
	for _, n := range l.nodes {
		data[n.name] = n.data()
	}
	if all := append(l.pods, l.inline...); len(all) > 0 {
		data[""] = all
	}
	return data, nil
}

type localScan struct {
	*Client
	nodes []*localNode
	named map[string][]*localNode // by name and by hostname label
	pods  []cluster.LocalData     // volumes of Proxmox' CSI driver, and of servers that may know machines by name
	// inline are the volumes of servers that only pods name.
	inline []cluster.LocalData
}

type localNode struct {
	name   string
	labels labels.Set

	pools, volumes, disks, directories []cluster.LocalData // of LINSTOR and Mayastor, PersistentVolumes, Longhorn, Rook
	managed                            []managed
	writers                            map[string]map[string]bool // the workloads that write to a path by hostPath
}

func newLocalScan(c *Client, nodes []cluster.KubeNode) *localScan {
	l := &localScan{Client: c, named: map[string][]*localNode{}}
	for _, k := range nodes {
		n := &localNode{name: k.Name, labels: k.Metadata.Labels, writers: map[string]map[string]bool{}}
		l.nodes = append(l.nodes, n)
		l.named[n.name] = append(l.named[n.name], n)
		if hostname := n.hostname(); hostname != n.name {
			l.named[hostname] = append(l.named[hostname], n)
		}
	}
	return l
}

// hostname returns the node's hostname label, which ties volumes and pods to the node.
func (n *localNode) hostname() string { return cmp.Or(n.labels[corev1.LabelHostname], n.name) }

// singleNode returns the name of the single node of the search; "" if there are several.
func (l *localScan) singleNode() string {
	if len(l.nodes) == 1 {
		return l.nodes[0].name
	}
	return ""
}

// byName returns the node of that name; nil if it is not part of the search.
func (l *localScan) byName(name string) *localNode {
	n, _ := cluster.Find(l.named[name], func(n *localNode) bool { return n.name == name })
	return n
}

func (n *localNode) data() []cluster.LocalData {
	data := slices.Concat(n.volumes, n.pools, n.disks, n.directories)
	for _, p := range n.paths() {
		if !slices.ContainsFunc(data, func(d cluster.LocalData) bool { return d.Path != "" && path.Clean(d.Path) == p.Path }) {
			data = append(data, p)
		}
	}
	slices.SortStableFunc(data, func(a, b cluster.LocalData) int { return cmp.Compare(a.Name, b.Name) })
	return data
}

// localVolumes finds the volumes on each node. LINSTOR's volumes are in its pools there.
func (l *localScan) localVolumes(ctx context.Context) error {
	begin := func() {
		for _, n := range l.nodes {
			n.volumes = nil
		}
		l.pods = nil
	}
	return l.eachVolume(ctx, begin, l.addVolume)
}

func (l *localScan) addVolume(pv *corev1.PersistentVolume) {
	if csi := pv.Spec.CSI; csi != nil && csi.Driver == proxmoxDriver {
		l.pods = append(l.pods, cluster.LocalData{Name: "pv/" + pv.Name, What: foreign.Line(describe(pv)), Handle: csi.VolumeHandle})
	}
	if !holdsData(pv) {
		return
	}
	if access := accessOf(pv); access != "" {
		l.pods = append(l.pods, cluster.LocalData{Name: "pv/" + pv.Name, What: foreign.Line(describe(pv)), Access: access})
	}
	path, at := l.localTo(pv)
	for _, n := range at {
		for _, location := range locations(pv, path, n.pools) {
			location.Name, location.What = "pv/"+pv.Name, foreign.Line(describe(pv))
			n.volumes = append(n.volumes, location)
		}
	}
}

// accessOf returns the protocol by which machines use a volume if that is iSCSI or NVMe-oF, else "". CSI drivers say
// it in a volume's attributes, by the name of the protocol or of the target. Mayastor, whose protocol is nvmf, is
// neither: it gives nodes names itself.
func accessOf(pv *corev1.PersistentVolume) string {
	if pv.Spec.ISCSI != nil {
		return cluster.ISCSI
	}
	if pv.Spec.CSI == nil {
		return ""
	}
	return accessIn(pv.Spec.CSI.VolumeAttributes)
}

func accessIn(attributes map[string]string) string {
	for _, value := range attributes {
		switch value = strings.ToLower(value); {
		case value == "iscsi", strings.HasPrefix(value, "iqn."):
			return cluster.ISCSI
		case slices.Contains([]string{"nvmeof", "nvme-of", "nvmetcp", "nvme-tcp", "nvme/tcp"}, value), strings.HasPrefix(value, "nqn."):
			return cluster.NVMeoF
		}
	}
	return ""
}

// holdsData reports whether the volume holds data: a claim uses it, or used it and the volume is retained.
func holdsData(pv *corev1.PersistentVolume) bool {
	switch pv.Status.Phase {
	case corev1.VolumeBound:
		return true
	case corev1.VolumeReleased, corev1.VolumeFailed:
		return pv.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimRetain
	}
	return false
}

// localTo lists the nodes that the volume is, or may be, confined to, and its path there. A hostPath volume without
// affinity is wherever its pod happened to run. Local CSI drivers (TopoLVM, OpenEBS' LVM and ZFS) pin their volumes
// to the node by its name.
func (l *localScan) localTo(pv *corev1.PersistentVolume) (path string, at []*localNode) {
	var required *corev1.NodeSelector
	if pv.Spec.NodeAffinity != nil {
		required = pv.Spec.NodeAffinity.Required
	}
	switch source := pv.Spec.PersistentVolumeSource; {
	case source.Local != nil:
		return source.Local.Path, l.allowed(required)
	case source.HostPath != nil:
		return source.HostPath.Path, l.allowed(required)
	}
	return "", l.pinned(required)
}

// pooled are the CSI drivers whose volumes are in LVM or ZFS: the format, and the volume attribute that names the
// group or pool. TopoLVM keeps that name in the configuration of its lvmd.
var pooled = map[string]struct{ format, attribute string }{
	"topolvm.io":           {format: cluster.FormatLVM},
	"topolvm.cybozu.com":   {format: cluster.FormatLVM},                                   // its name before 0.10
	"local.csi.openebs.io": {format: cluster.FormatLVM, attribute: "openebs.io/volgroup"}, // lvm-localpv, pkg/driver/controller.go, CreateVolume
	"zfs.csi.openebs.io":   {format: cluster.FormatZFS, attribute: "openebs.io/poolname"}, // zfs-localpv, likewise
}

// proxmoxDriver is sergelogvinov/proxmox-csi-plugin (pkg/csi/driver.go, DriverName).
const proxmoxDriver = "csi.proxmox.sinextra.dev"

// linstorDriver keeps its volumes in LINSTOR's pools on the node; a PersistentVolume does not name its pool.
const linstorDriver = "linstor.csi.linbit.com"

// locations lists where the volume may be, as far as known, without names.
func locations(pv *corev1.PersistentVolume, path string, pools []cluster.LocalData) []cluster.LocalData {
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

// allowed lists the nodes on which a volume may be used. Most selectors name their
// nodes, which avoids checking every volume against every node.
func (l *localScan) allowed(s *corev1.NodeSelector) []*localNode {
	if s == nil {
		return l.nodes
	}
	var nodes []*localNode
	for _, t := range s.NodeSelectorTerms {
		names, ok := namedBy(t)
		if !ok {
			nodes = l.nodes
			break
		}
		for _, name := range names {
			nodes = append(nodes, l.named[name]...)
		}
	}
	var at []*localNode
	for _, n := range nodes {
		if allows(s, n) && !slices.Contains(at, n) {
			at = append(at, n)
		}
	}
	return at
}

// namedBy lists the names or hostnames that the term accepts; ok is false if it restricts neither.
func namedBy(t corev1.NodeSelectorTerm) (names []string, ok bool) {
	for _, r := range t.MatchExpressions {
		if r.Key == corev1.LabelHostname && isList(r) {
			return r.Values, true
		}
	}
	for _, r := range t.MatchFields {
		if r.Key == metav1.ObjectNameField && isList(r) {
			return r.Values, true
		}
	}
	return nil, false
}

// isList reports whether a requirement lists the accepted values and is valid: see meets.
func isList(r corev1.NodeSelectorRequirement) bool {
	_, err := labels.NewRequirement(r.Key, selection.In, r.Values)
	return r.Operator == corev1.NodeSelectorOpIn && err == nil
}

// allows reports whether a volume may be used on the node: as for the scheduler, one term must match.
func allows(s *corev1.NodeSelector, n *localNode) bool {
	byName := labels.Set{metav1.ObjectNameField: n.name}
	return slices.ContainsFunc(s.NodeSelectorTerms, func(t corev1.NodeSelectorTerm) bool {
		if len(t.MatchExpressions)+len(t.MatchFields) == 0 {
			return false
		}
		differs := func(set labels.Set) func(corev1.NodeSelectorRequirement) bool {
			return func(r corev1.NodeSelectorRequirement) bool { return !meets(set, r) }
		}
		return !slices.ContainsFunc(t.MatchExpressions, differs(n.labels)) && !slices.ContainsFunc(t.MatchFields, differs(byName))
	})
}

// meets reports whether the labels meet a requirement. An invalid requirement counts as met.
func meets(set labels.Set, r corev1.NodeSelectorRequirement) bool {
	operators := map[corev1.NodeSelectorOperator]selection.Operator{
		corev1.NodeSelectorOpIn: selection.In, corev1.NodeSelectorOpNotIn: selection.NotIn,
		corev1.NodeSelectorOpExists: selection.Exists, corev1.NodeSelectorOpDoesNotExist: selection.DoesNotExist,
		corev1.NodeSelectorOpGt: selection.GreaterThan, corev1.NodeSelectorOpLt: selection.LessThan,
	}
	requirement, err := labels.NewRequirement(r.Key, operators[r.Operator], r.Values)
	return err != nil || requirement.Matches(set)
}

// pinned lists the node that a volume is confined to: each term requires that node's
// own name. Labels that several nodes may share, such as a zone, pin nothing.
func (l *localScan) pinned(s *corev1.NodeSelector) []*localNode {
	if s == nil || len(s.NodeSelectorTerms) == 0 {
		return nil
	}
	var at []*localNode
	first := s.NodeSelectorTerms[0]
	for _, r := range slices.Concat(first.MatchExpressions, first.MatchFields) {
		for _, value := range r.Values {
			for _, n := range l.named[value] {
				if pins(s, n) && !slices.Contains(at, n) {
					at = append(at, n)
				}
			}
		}
	}
	return at
}

func pins(s *corev1.NodeSelector, n *localNode) bool {
	names := []string{n.name, n.hostname()}
	itself := func(r corev1.NodeSelectorRequirement) bool {
		return r.Operator == corev1.NodeSelectorOpIn && len(r.Values) == 1 && slices.Contains(names, r.Values[0])
	}
	return !slices.ContainsFunc(s.NodeSelectorTerms, func(t corev1.NodeSelectorTerm) bool {
		return !slices.ContainsFunc(t.MatchExpressions, itself) && !slices.ContainsFunc(t.MatchFields, itself)
	})
}

// managed is a directory of the node whose contents a storage system reports itself: what the system's own pods write
// there is not reported again.
type managed struct {
	namespace string
	app       string // prefix of its pods' label app; "": every pod of the namespace
	dir       string
}

// hostPaths finds the directories and files of each node that its pods write to through hostPath volumes. Pods that
// have ended do not count. For a single node the API server selects the pods.
func (l *localScan) hostPaths(ctx context.Context) error {
	var selected metav1.ListOptions
	if node := l.singleNode(); node != "" {
		selected.FieldSelector = fields.OneTermEqualSelector("spec.nodeName", node).String()
	}
	begin := func() {
		for _, n := range l.nodes {
			clear(n.writers)
		}
		l.inline = nil
	}
	return l.eachPod(ctx, "", selected, begin, func(p *corev1.Pod) {
		l.addInline(p)
		if n := l.byName(p.Spec.NodeName); n != nil {
			n.addWriter(p)
		}
	})
}

// addInline adds the volumes of servers that only the pod itself names, once for all pods of a workload.
func (l *localScan) addInline(p *corev1.Pod) {
	if finished(p) {
		return
	}
	for _, v := range inlineServed(p) {
		data := cluster.LocalData{Name: "pod/" + p.Namespace + "/" + p.Name, What: foreign.Line(v.what), Access: v.access}
		if !slices.ContainsFunc(l.inline, func(d cluster.LocalData) bool { return d.What == data.What }) {
			l.inline = append(l.inline, data)
		}
	}
}

func (n *localNode) addWriter(p *corev1.Pod) {
	if finished(p) {
		return
	}
	for _, at := range writablePaths(&p.Spec) {
		isManaged := func(m managed) bool {
			return m.namespace == p.Namespace && strings.HasPrefix(p.Labels["app"], m.app) && within(at, m.dir)
		}
		if isRegenerated(p, at) || slices.ContainsFunc(n.managed, isManaged) {
			continue
		}
		if n.writers[at] == nil {
			n.writers[at] = map[string]bool{}
		}
		n.writers[at][workload(p)] = true
	}
}

func (n *localNode) paths() (data []cluster.LocalData) {
	for _, at := range slices.Sorted(maps.Keys(n.writers)) {
		by := slices.Sorted(maps.Keys(n.writers[at]))
		data = append(data, cluster.LocalData{Name: "hostpath" + at, What: fmt.Sprintf("hostPath %s (%s)", at, strings.Join(by, ", ")), Path: at})
	}
	return data
}

// writablePaths lists the paths on the node that may hold lasting data and that a container of the pod may write to.
func writablePaths(spec *corev1.PodSpec) []string {
	sources := map[string]string{}
	for _, v := range spec.Volumes {
		if v.HostPath != nil && !isDevice(v.HostPath.Type) {
			sources[v.Name] = v.HostPath.Path
		}
	}
	var paths []string
	look := func(mounts []corev1.VolumeMount) {
		for _, m := range mounts {
			source, ok := sources[m.Name]
			if at := path.Join("/", source, m.SubPath); ok && !m.ReadOnly && isPersistent(at) {
				paths = append(paths, at)
			}
		}
	}
	for _, c := range slices.Concat(spec.InitContainers, spec.Containers) {
		look(c.VolumeMounts)
	}
	for _, c := range spec.EphemeralContainers {
		look(c.VolumeMounts)
	}
	slices.Sort(paths)
	return slices.Compact(paths)
}

// isDevice reports whether a hostPath is a socket or a device, which hold no data.
func isDevice(t *corev1.HostPathType) bool {
	return t != nil && slices.Contains([]corev1.HostPathType{corev1.HostPathSocket, corev1.HostPathCharDev, corev1.HostPathBlockDev}, *t)
}

// isPersistent reports whether data written to a path of a Talos node survives a restart and is more than
// configuration. /var does, and /opt, an overlay whose writes go to /var/system/overlays. /etc/cni, /etc/kubernetes
// and /usr/libexec/kubernetes survive, too, but the CNI, Talos and the kubelet fill them (constants.Overlays of
// Talos). /var/run leads to /run; all other paths are read-only or in memory.
func isPersistent(at string) bool {
	return at == "/" || (within(at, "/var") || within(at, "/opt")) && !within(at, "/var/run")
}

func within(at, dir string) bool {
	return at == dir || strings.HasPrefix(at, strings.TrimSuffix(dir, "/")+"/")
}

// workload names the creator of the pod, by a name that outlives the pod: "DaemonSet default/agent".
func workload(p *corev1.Pod) string {
	kind, name := "pod", p.Name
	if ref := metav1.GetControllerOfNoCopy(p); ref != nil && ref.Kind != "Node" {
		kind, name = ref.Kind, ref.Name
	}
	if hash := p.Labels["pod-template-hash"]; kind == "ReplicaSet" && hash != "" && strings.HasSuffix(name, "-"+hash) {
		kind, name = "Deployment", strings.TrimSuffix(name, "-"+hash)
	}
	return kind + " " + p.Namespace + "/" + name
}

func (c *Client) AttachedVolumes(ctx context.Context, node string) ([]cluster.AttachedVolume, error) {
	// The API can't select VolumeAttachments by node.
	list, err := c.api.StorageV1().VolumeAttachments().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list volume attachments: %w", c.translate(err))
	}
	var attached []cluster.AttachedVolume
	for _, a := range list.Items {
		if a.Spec.NodeName != node {
			continue
		}
		v := attachedVolume(a)
		c.bind(ctx, &v)
		attached = append(attached, v)
	}
	if len(attached) == 0 {
		return nil, nil
	}
	users, err := c.stayingUsers(ctx, node)
	if err != nil {
		return nil, err
	}
	for i := range attached {
		attached[i].User = users[attached[i].Claim] // an unknown claim is "", which no pod uses
	}
	slices.SortFunc(attached, func(a, b cluster.AttachedVolume) int { return cmp.Compare(a.Attachment, b.Attachment) })
	return attached, nil
}

// PodVolumes lists the handles of all volumes of Proxmox' CSI driver.
func (c *Client) PodVolumes(ctx context.Context) (handles []string, err error) {
	err = c.eachVolume(ctx, func() { handles = nil }, func(pv *corev1.PersistentVolume) {
		if csi := pv.Spec.CSI; csi != nil && csi.Driver == proxmoxDriver {
			handles = append(handles, csi.VolumeHandle)
		}
	})
	return handles, err
}

// stayingUsers returns the pods that a drain leaves on the node, by the claims that they use.
func (c *Client) stayingUsers(ctx context.Context, node string) (map[string]string, error) {
	pods, err := c.api.CoreV1().Pods("").List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=" + node})
	if err != nil {
		return nil, fmt.Errorf("list pods of node %s: %w", node, c.translate(err))
	}
	users := map[string]string{}
	for i := range pods.Items {
		p := &pods.Items[i]
		if kind := stayingKind(p); kind != "" {
			for _, claim := range claimsOf(p) {
				users[p.Namespace+"/"+claim] = kind + " pod " + p.Namespace + "/" + p.Name
			}
		}
	}
	return users, nil
}

// claimsOf names the claims that a pod uses, including those created for it alone.
func claimsOf(p *corev1.Pod) []string {
	var claims []string
	for _, v := range p.Spec.Volumes {
		switch {
		case v.PersistentVolumeClaim != nil:
			claims = append(claims, v.PersistentVolumeClaim.ClaimName)
		case v.Ephemeral != nil:
			claims = append(claims, p.Name+"-"+v.Name) // VolumeClaimName in component-helpers/storage/ephemeral
		}
	}
	return claims
}

func attachedVolume(a storagev1.VolumeAttachment) cluster.AttachedVolume {
	v := cluster.AttachedVolume{Attachment: a.Name, Driver: a.Spec.Attacher, Volume: deref(a.Spec.Source.PersistentVolumeName)}
	switch {
	case a.Status.DetachError != nil:
		v.Trouble = "can't be detached: " + foreign.Line(a.Status.DetachError.Message)
	case a.Status.AttachError != nil:
		v.Trouble = "could not be attached: " + foreign.Line(a.Status.AttachError.Message)
	}
	return v
}

// bind adds to v the details of its PersistentVolume. If there is none, or it cannot be read, the volume still counts.
func (c *Client) bind(ctx context.Context, v *cluster.AttachedVolume) {
	if v.Volume == "" {
		return
	}
	pv, err := c.api.CoreV1().PersistentVolumes().Get(ctx, v.Volume, metav1.GetOptions{})
	if err != nil {
		return
	}
	if pv.Spec.CSI != nil {
		v.Handle = pv.Spec.CSI.VolumeHandle
	}
	if ref := pv.Spec.ClaimRef; ref != nil {
		v.Claim = ref.Namespace + "/" + ref.Name
	}
}

// ServedUsers lists the pods that use volumes on iSCSI or NVMe-oF, sorted, without those that have ended or are about
// to.
func (c *Client) ServedUsers(ctx context.Context) ([]cluster.ServedUser, error) {
	claims, err := c.servedClaims(ctx)
	if err != nil {
		return nil, err
	}
	var users []cluster.ServedUser
	err = c.eachPod(ctx, "", metav1.ListOptions{}, func() { users = nil }, func(p *corev1.Pod) { users = append(users, servedUsers(p, claims)...) })
	if err != nil {
		return nil, err
	}
	slices.SortFunc(users, func(a, b cluster.ServedUser) int {
		return cmp.Or(cmp.Compare(a.Pod, b.Pod), cmp.Compare(a.Volume, b.Volume))
	})
	return users, nil
}

type served struct{ name, what, access, trouble string }

// servedClaims returns the volumes of servers by their claims, "namespace/name", with the errors of attaching them.
func (c *Client) servedClaims(ctx context.Context) (map[string]served, error) {
	claims := map[string]served{}
	err := c.eachVolume(ctx, func() { clear(claims) }, func(pv *corev1.PersistentVolume) {
		if access := accessOf(pv); access != "" && pv.Spec.ClaimRef != nil {
			claims[pv.Spec.ClaimRef.Namespace+"/"+pv.Spec.ClaimRef.Name] = served{name: pv.Name, what: "PersistentVolume " + pv.Name, access: access}
		}
	})
	if err != nil || len(claims) == 0 {
		return nil, err
	}
	attachments, err := c.api.StorageV1().VolumeAttachments().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list volume attachments: %w", c.translate(err))
	}
	for _, a := range attachments.Items {
		v := attachedVolume(a)
		for _, claim := range slices.Collect(maps.Keys(claims)) {
			if of := claims[claim]; of.name == v.Volume && a.Status.AttachError != nil {
				of.trouble = v.Trouble
				claims[claim] = of
			}
		}
	}
	return claims, nil
}

// servedUsers lists the pod once with each volume of a server that it uses.
func servedUsers(p *corev1.Pod, claims map[string]served) (users []cluster.ServedUser) {
	if finished(p) || p.DeletionTimestamp != nil {
		return nil
	}
	add := func(v served) {
		users = append(users, cluster.ServedUser{
			Pod: p.Namespace + "/" + p.Name, Node: p.Spec.NodeName, Volume: foreign.Line(v.what), Access: v.access, Runs: started(p), Trouble: v.trouble,
		})
	}
	for _, v := range inlineServed(p) {
		add(v)
	}
	for _, claim := range claimsOf(p) {
		if v, is := claims[p.Namespace+"/"+claim]; is {
			add(v)
		}
	}
	return users
}

// inlineServed lists the volumes of servers that only the pod itself names.
func inlineServed(p *corev1.Pod) (volumes []served) {
	for _, v := range p.Spec.Volumes {
		access := ""
		switch {
		case v.ISCSI != nil:
			access = cluster.ISCSI
		case v.CSI != nil:
			access = accessIn(v.CSI.VolumeAttributes)
		}
		if access != "" {
			volumes = append(volumes, served{what: "volume " + v.Name + " of " + workload(p), access: access})
		}
	}
	return volumes
}

// started says whether the kubelet has reached the pod's containers, which it does once all volumes are there. A pod
// that ran before its node got another system disk has containers that are being created again, though its phase is
// Running (convertToAPIContainerStatuses and getPhase in pkg/kubelet/kubelet_pods.go).
func started(p *corev1.Pod) bool {
	return slices.ContainsFunc(slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses), func(c corev1.ContainerStatus) bool {
		waits := c.State.Waiting
		return c.State.Running != nil || c.State.Terminated != nil || waits != nil && !slices.Contains([]string{"", "ContainerCreating", "PodInitializing"}, waits.Reason)
	})
}

// errWatchEnded says that the API server, or something in between, ended a watch.
var errWatchEnded = errors.New("the watch has ended")

func (c *Client) WatchNode(ctx context.Context, node string, tell func(look bool)) error {
	stream, err := c.streams.CoreV1().Nodes().Watch(ctx, metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("metadata.name", node).String()})
	last := ""
	return c.watched(ctx, "node "+node, stream, err, tell, func(e watch.Event) bool {
		was := last
		last = ""
		if n, ok := e.Object.(*corev1.Node); ok && e.Type != watch.Deleted && isReady(n) {
			last = string(n.UID) + n.Status.NodeInfo.BootID
		}
		return last != "" && last != was
	})
}

func (c *Client) WatchDetached(ctx context.Context, node string, tell func(look bool)) error {
	stream, err := c.streams.StorageV1().VolumeAttachments().Watch(ctx, metav1.ListOptions{}) // the API cannot select them by node
	return c.watched(ctx, "volume attachments", stream, err, tell, func(e watch.Event) bool {
		a, ok := e.Object.(*storagev1.VolumeAttachment)
		return ok && e.Type == watch.Deleted && a.Spec.NodeName == node
	})
}

func (d *draining) watchPods(ctx context.Context, tell func(look bool)) error {
	stream, err := d.streams.CoreV1().Pods("").Watch(ctx, metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("spec.nodeName", d.node).String()})
	return d.watched(ctx, "pods of node "+d.node, stream, err, tell, func(e watch.Event) bool { return e.Type == watch.Deleted })
}

func (d *draining) watchBudgets(ctx context.Context, tell func(look bool)) error {
	stream, err := d.streams.PolicyV1().PodDisruptionBudgets("").Watch(ctx, metav1.ListOptions{})
	return d.watched(ctx, "disruption budgets", stream, err, tell, func(e watch.Event) bool {
		b, ok := e.Object.(*policyv1.PodDisruptionBudget)
		return ok && e.Type == watch.Modified && b.Status.DisruptionsAllowed > 0 && d.hadPodsIn(b.Namespace)
	})
}

// watched reports that the watch is in place, and then every event worth a look. err is the error of its beginning.
func (c *Client) watched(
	ctx context.Context, what string, stream watch.Interface, err error, tell func(look bool), worth func(watch.Event) bool,
) error {
	if err != nil {
		return fmt.Errorf("watch %s: %w", what, c.translate(err))
	}
	defer stream.Stop()
	tell(false)
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case e, open := <-stream.ResultChan():
			if !open || e.Type == watch.Error {
				return errWatchEnded
			}
			if worth(e) {
				tell(true)
			}
		}
	}
}
