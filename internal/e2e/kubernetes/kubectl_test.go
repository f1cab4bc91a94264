package kubernetes

import (
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// TestKubectl is what people type in a lab without a real control plane, in Kubernetes' own
// kubectl, and its tables beside those of Kubernetes' own printers.
func TestKubectl(t *testing.T) {
	t.Parallel() // it mostly waits
	u := startLab(t, nil, "--control-planes", "3")
	u.kubectl(0, "wait --for=condition=Ready nodes --all --timeout=60s", "node/wk2 condition met")
	for _, c := range commands {
		u.kubectl(c.code, c.line, c.texts...)
	}
	t.Run("tables", func(t *testing.T) {
		u.t = t
		u.tables()
	})
	t.Run("schemas", func(t *testing.T) {
		u.t = t
		u.schemas()
	})
	t.Attr("commands", strconv.Itoa(u.count))
}

// commands are in the order in which they run; blanks in a text stand for any number.
var commands = []struct {
	code  int
	line  string
	texts []string
}{
	{0, "version", []string{"Client Version: v1.37.1", "Server Version: v1.35.4"}},
	{0, "get nodes -o wide", []string{
		"NAME STATUS ROLES AGE VERSION INTERNAL-IP EXTERNAL-IP OS-IMAGE KERNEL-VERSION CONTAINER-RUNTIME",
		"cp1 Ready control-plane", "Talos (v1.13.9) <unknown> (amd64) containerd://2.1.4",
	}},
	{0, "wait --for=condition=Ready pods --all -A --timeout=60s", []string{"pod/kube-apiserver-cp1 condition met"}},
	{0, "get pods -A", []string{"NAMESPACE NAME READY STATUS RESTARTS AGE", "kube-system kube-apiserver-cp3 1/1 Running 0"}},
	{0, "get all", []string{"deployment.apps/web 2/2 2 2"}},
	{0, "get leases -n kube-node-lease", []string{"NAME HOLDER AGE", "wk1 wk1"}},
	{0, "get nodes --watch --request-timeout=2s", []string{"NAME STATUS ROLES AGE VERSION"}},
	{0, "explain node.spec", []string{"FIELD: spec <NodeSpec>", "unschedulable <boolean>"}},
	{0, "explain deployment.spec.template.spec.containers.ports", []string{"FIELD: ports <[]ContainerPort>", "containerPort <integer> -required-"}},

	{1, "diff -f {site}", []string{"+++ ", "+kind: Deployment"}},
	{0, "apply -f {site}", []string{"configmap/settings created", "deployment.apps/site created"}},
	{0, "apply -f {site}", []string{"configmap/settings unchanged", "deployment.apps/site unchanged"}},
	{0, "diff -f {site}", nil},
	{1, "create -f {site} --dry-run=server", []string{`configmaps "settings" already exists`}},
	{0, "rollout status deployment/site --timeout=60s", []string{`deployment "site" successfully rolled out`}},
	{0, "wait --for=condition=Available deployment/site --timeout=60s", []string{"deployment.apps/site condition met"}},
	{0, "get deployment site -o wide", []string{"NAME READY UP-TO-DATE AVAILABLE AGE CONTAINERS IMAGES SELECTOR", "site 2/2 2 2", "site nginx:1.27 app=site"}},
	{0, "apply --server-side -f {site}", []string{"deployment.apps/site serverside-applied"}},
	{1, `patch deployment site --field-manager=other -p {"spec":{"replcas":1}} --subresource=scale`, []string{"the server could not find the requested resource"}},
	{0, `patch deployment site -p {"spec":{"replcas":1}}`, []string{`Warning: unknown field "spec.replcas"`}},

	{0, "describe node wk1", []string{"HolderIdentity: wk1", "Non-terminated Pods:", "Ready True"}},
	{0, "drain wk1 --ignore-daemonsets", []string{"node/wk1 cordoned", "node/wk1 drained"}},
	{0, "get node wk1", []string{"wk1 Ready,SchedulingDisabled"}},
	{0, "uncordon wk1", []string{"node/wk1 uncordoned"}},
	{1, "top nodes", []string{"error: Metrics API not available"}},
	{1, "get jobs", []string{`error: the server doesn't have a resource type "jobs"`}},
	{1, "get node wk9", []string{`Error from server (NotFound): nodes "wk9" not found`}},
	{0, "delete -f {site}", []string{`deployment.apps "site" deleted`}},
	{0, "apply -f {kinds}", []string{"poddisruptionbudget.policy/most created"}},
}

// kubectl runs a kubectl command that must end with that code and print all of that.
func (u *user) kubectl(code int, line string, texts ...string) {
	u.t.Helper()
	program := must(filepath.Abs(*kubectlBinary))(u.t)
	args := strings.Fields(line)
	for i, arg := range args {
		if name := strings.Trim(arg, "{}"); arg == "{"+name+"}" {
			args[i] = must(filepath.Abs("testdata/" + name + ".yaml"))(u.t)
		}
	}
	s := u.call("kubectl", program, args)
	blanks := regexp.MustCompile(`[ \t]+`)
	s.out, s.errs = blanks.ReplaceAllString(s.out, " "), blanks.ReplaceAllString(s.errs, " ")
	s.has(u.t, code, texts...)
}
