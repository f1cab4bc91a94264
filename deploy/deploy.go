// Package deploy has the manifests that install recast-operator. Kustomize and Helm read
// the same files; Manifests prints them for kubectl apply.
package deploy

import (
	"cmp"
	"embed"
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/recast-sh/recast/internal/fault"
)

// Image is where the images of recast are, without a tag.
const Image = "ghcr.io/recast-sh/recast"

// What the files say, which Manifests replaces.
const (
	namespace = "recast-system"
	image     = Image + ":latest"
	replicas  = "\n  replicas: 2 "
	nodeLabel = "node-role.kubernetes.io/control-plane"
)

//go:embed crds/*.yaml base/*.yaml all-namespaces/*.yaml monitoring/*.yaml
var files embed.FS

// Options say how the operator is installed. The zero value of a field is its default.
type Options struct {
	Namespace string   // default: recast-system
	Image     string   // of the operator and of its Jobs, with a tag or a digest; default: the tag latest
	JobImages []string // that spec.job.image of a TalosCluster may name, besides Image
	Replicas  int      // default: 2
	NodeLabel string   // of the nodes that run the operator and its Jobs, with any value; default: that of control planes
	// Namespaces whose objects the operator looks at, and makes Jobs in. They must exist. Default: its own.
	Namespaces    []string
	AllNamespaces bool
	Monitoring    bool // also the objects of the Prometheus operator, and a dashboard for Grafana
}

// Manifests returns all objects as one YAML stream: first CRDs, then the namespace, then
// access, then the rest, so that each object finds what it needs.
func Manifests(o Options) (string, error) {
	o.Namespace, o.Image, o.Replicas = cmp.Or(o.Namespace, namespace), cmp.Or(o.Image, image), cmp.Or(o.Replicas, 2)
	o.NodeLabel = cmp.Or(o.NodeLabel, nodeLabel)
	if err := o.check(); err != nil {
		return "", err
	}
	dirs := []string{"crds", "base"}
	args := ""
	if len(o.Namespaces) > 0 {
		args = fmt.Sprintf(", %q", "--namespaces="+strings.Join(o.Namespaces, ","))
	}
	if o.AllNamespaces {
		dirs, args = append(dirs, "all-namespaces"), ", --all-namespaces"
	}
	if o.Monitoring {
		dirs = append(dirs, "monitoring")
	}
	var objects []string
	for _, dir := range dirs {
		found, err := read(dir)
		if err != nil {
			return "", err
		}
		for _, object := range found {
			objects = append(objects, o.bound(object)...)
		}
	}
	slices.SortStableFunc(objects, func(a, b string) int { return cmp.Compare(order(a), order(b)) })
	return strings.NewReplacer(
		namespace, o.Namespace,
		"'"+image+"'", "'"+strings.Join(append([]string{o.Image}, o.JobImages...), "', '")+"'",
		image, o.Image,
		nodeLabel+"]", o.NodeLabel+args+"]",
		nodeLabel, o.NodeLabel,
		replicas, "\n  replicas: "+strconv.Itoa(o.Replicas)+" ",
	).Replace(strings.Join(objects, "---\n")), nil
}

// bound returns an object; of the RoleBinding for clusters, one for each namespace that is listed.
func (o Options) bound(object string) []string {
	if len(o.Namespaces) == 0 || !strings.Contains(object, "\n  name: recast-operator-clusters\n") {
		return []string{object}
	}
	var all []string
	for _, ns := range o.Namespaces {
		all = append(all, strings.Replace(object, "\n  namespace: "+namespace+"\n", "\n  namespace: "+ns+"\n", 1))
	}
	return all
}

// The values are put into YAML as they are, so they must be plain.
var (
	namespaceForm = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)
	nodeLabelForm = regexp.MustCompile(`^([a-z0-9][a-z0-9.-]*/)?[A-Za-z0-9][A-Za-z0-9._-]*$`)
	imageForm     = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._:/@-]*$`)
)

func (o Options) check() error {
	for _, ns := range append([]string{o.Namespace}, o.Namespaces...) {
		if !namespaceForm.MatchString(ns) {
			return fault.Configf("%q is not the name of a namespace: use up to 63 lower-case letters, digits and hyphens", ns)
		}
	}
	for _, ref := range append([]string{o.Image}, o.JobImages...) {
		if !imageForm.MatchString(ref) {
			return fault.Configf("%q is not a reference to an image, such as %s:v1.2.3", ref, Image)
		}
	}
	switch {
	case o.AllNamespaces && len(o.Namespaces) > 0:
		return fault.Configf("namespaces are listed, and all are wanted: give one of the two")
	case !nodeLabelForm.MatchString(o.NodeLabel):
		return fault.Configf("%q is not the key of a label, such as %s", o.NodeLabel, nodeLabel)
	case o.Replicas < 1:
		return fault.Configf("%d replicas: at least 1 is needed", o.Replicas)
	}
	return nil
}

// read returns the objects of a directory, with their comments.
func read(dir string) ([]string, error) {
	names, err := fs.Glob(files, dir+"/*.yaml")
	if err != nil {
		return nil, err
	}
	var objects []string
	for _, name := range names {
		if path.Base(name) == "kustomization.yaml" {
			continue
		}
		text, err := files.ReadFile(name)
		if err != nil {
			return nil, fmt.Errorf("read the embedded %s: %w", name, err)
		}
		for object := range strings.SplitSeq(strings.TrimPrefix(string(text), "---\n"), "\n---\n") {
			objects = append(objects, strings.TrimSuffix(object, "\n")+"\n")
		}
	}
	return objects, nil
}

var kind = regexp.MustCompile(`(?m)^kind: (\w+)$`)

// order is the place of an object in the stream.
func order(object string) int {
	switch kind.FindStringSubmatch(object)[1] {
	case "CustomResourceDefinition":
		return 0
	case "Namespace":
		return 1
	case "ServiceAccount":
		return 2
	case "ClusterRole", "Role", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding":
		return 3
	case "ClusterRoleBinding", "RoleBinding":
		return 4
	}
	return 5
}

// Metric is a metric of the operator that an alert or the dashboard uses.
type Metric struct {
	Name   string
	Labels []string // its own, besides those of the scrape
	Help   string   // "": one of controller-runtime, client-go or the Go runtime
}

// Metrics are all of them. Tests hold the alerts, the dashboard and the documentation against this list.
var Metrics = []Metric{
	{"recast_cluster_condition", []string{"namespace", "cluster", "type", "status"}, "1 for the status that a condition of a TalosCluster has"},
	{"recast_cluster_nodes", []string{"namespace", "cluster", "state"}, "nodes of a TalosCluster: total, in-sync, stale, unread"},
	{"recast_cluster_check_timestamp_seconds", []string{"namespace", "cluster"}, "when the newest check of a TalosCluster ended"},
	{"recast_cluster_check_due_timestamp_seconds", []string{"namespace", "cluster"}, "when the check after the newest one of a TalosCluster is due; none if it is suspended or has no schedule"},
	{"recast_imageroll_phase", []string{"namespace", "roll", "cluster", "phase"}, "1 for the phase of an ImageRoll that is not finished, or is the newest of its cluster"},
	{"recast_fleetroll_members", []string{"namespace", "fleet", "phase"}, "clusters of a FleetRoll"},
	{"controller_runtime_reconcile_total", []string{"controller", "result"}, ""},
	{"workqueue_depth", []string{"name", "controller", "priority"}, ""},
	{"rest_client_requests_total", []string{"code", "host", "method"}, ""},
	{"leader_election_master_status", []string{"name"}, ""},
	{"process_resident_memory_bytes", nil, ""},
}
