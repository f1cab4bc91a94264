package operator

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/recast-sh/recast/internal/e2e/kubernetes/nodeagent"
	"github.com/recast-sh/recast/internal/e2e/kubernetes/plane"
	"github.com/recast-sh/recast/internal/e2e/kubernetes/process"
)

var (
	bin   = flag.String("bin", "../../../../bin", "directory with recast and recast-operator, for containers: linked statically")
	speed = flag.String("speed", "20", "of the labs")
)

// image is what the Deployment and the Jobs run.
const image = "ghcr.io/recast-sh/recast:e2e"

// house is a management cluster with the operator, and a namespace in it for the test.
type house struct {
	t         *testing.T
	plane     *plane.ControlPlane
	nodes     []*nodeagent.Node
	namespace string
	page      string // of the documentation, whose commands are typed
	auditLog  string // file
	commands  *int
}

// newHouse starts the management cluster, and installs the operator as the documentation says.
func newHouse(t *testing.T) house {
	t.Helper()
	page := must(os.ReadFile("../../../../docs/howto/operator.md"))(t)
	flags, log := audited(t)
	h := house{t: t, plane: plane.StartWith(t, flags), auditLog: log, namespace: "default", page: string(page), commands: new(int)}
	files := map[string]string{"/etc/ssl/certs": "/etc/ssl/certs"}
	for _, name := range []string{"recast", "recast-operator"} {
		files["/usr/bin/"+name] = h.binary(name)
	}
	for _, name := range []string{"one", "two"} {
		h.nodes = append(h.nodes, nodeagent.Start(t, h.plane.Node(name), name, nodeagent.Options{
			CPUs: 16, MemoryMiB: 64 << 10, MaxPods: 200,
			Images: map[string]nodeagent.Image{image: {Files: files, Entrypoint: []string{"/usr/bin/recast"}, User: "65532:65532", WorkingDir: "/work"}},
		}))
	}
	t.Cleanup(func() {
		if t.Failed() {
			h.showPods()
		}
	})
	return h
}

func (h house) binary(name string) string {
	h.t.Helper()
	file, err := filepath.Abs(filepath.Join(*bin, name))
	if err == nil {
		_, err = os.Stat(file)
	}
	if err != nil {
		h.t.Fatalf("%v: make e2e-operator builds it", err)
	}
	return file
}

// in is the house for a test of its own, in a namespace of its own.
func (h house) in(t *testing.T, namespace string) house {
	t.Helper()
	h.t, h.namespace = t, namespace
	h.kubectl("create namespace " + namespace)
	t.Cleanup(func() {
		if t.Failed() {
			h.show()
		}
	})
	return h
}

// typed runs a command of the documentation, and returns its output.
func (h house) typed(command string) string {
	h.t.Helper()
	if !strings.Contains(h.page, command) {
		h.t.Errorf("the page of the documentation does not say: %s", command)
	}
	args, found := strings.CutPrefix(command, "kubectl ")
	if !found {
		h.t.Fatalf("no kubectl: %s", command)
	}
	return h.kubectl(args)
}

// kubectl runs a command that has to succeed.
func (h house) kubectl(args string) string {
	h.t.Helper()
	out, err := h.try("", args)
	if err != nil {
		h.t.Fatalf("kubectl %s: %v\n%s", args, err, out)
	}
	return out
}

// apply applies manifests.
func (h house) apply(manifests string) {
	h.t.Helper()
	if out, err := h.try(manifests, "apply --server-side --force-conflicts -f -"); err != nil {
		h.t.Fatalf("kubectl apply: %v\n%s", err, out)
	}
}

// patience is how long a command may take.
const patience = 30 * time.Minute

// try runs kubectl in the namespace.
func (h house) try(stdin, args string) (string, error) {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(h.t.Context(), patience)
	defer cancel()
	words := []string{"kubectl", "--kubeconfig", filepath.Join(h.plane.Dir, "kubeconfig")}
	if h.namespace != "default" { // in which manifests may name others
		words = append(words, "-n", h.namespace)
	}
	words = append(words, split(args)...)
	c := exec.CommandContext(ctx, process.Built(h.t, "controlplane"), words...)
	c.Env = append(os.Environ(), "HOME="+h.plane.Dir)
	c.Stdin = strings.NewReader(stdin)
	var out bytes.Buffer
	c.Stdout, c.Stderr = &out, &out
	began := time.Now()
	err := c.Run()
	*h.commands++
	fmt.Fprintf(h.t.Output(), "   $ kubectl %s   # %.1f s\n", args, time.Since(began).Seconds())
	return strings.TrimSpace(out.String()), err
}

// split splits a command line into words; single quotes hold words together.
func split(line string) []string {
	var words []string
	word, quoted, open := "", false, false
	for _, r := range line + " " {
		switch {
		case r == '\'':
			quoted, open = !quoted, true
		case r == ' ' && !quoted:
			if word != "" || open {
				words = append(words, word)
			}
			word, open = "", false
		default:
			word += string(r)
		}
	}
	return words
}

// until waits until something is so.
func (h house) until(what string, so func() bool) {
	h.t.Helper()
	for began := time.Now(); time.Since(began) < patience; time.Sleep(200 * time.Millisecond) {
		if so() {
			return
		}
	}
	h.t.Fatalf("after %s it is not so that %s", patience, what)
}

// leader is the process that holds the operator's Lease: the name of its pod, an underscore, and a UUID.
func (h house) leader() string {
	h.namespace = "recast-system"
	return h.field("lease/recast-operator", "{.spec.holderIdentity}")
}

// field reads a JSON path of an object, "" if there is no such object or field.
func (h house) field(object, path string) string {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(h.t.Context()), time.Minute)
	defer cancel()
	c := exec.CommandContext(ctx, process.Built(h.t, "controlplane"), "kubectl", "--kubeconfig", filepath.Join(h.plane.Dir, "kubeconfig"),
		"-n", h.namespace, "get", object, "-o", "jsonpath="+path, "--ignore-not-found")
	out, err := c.Output()
	if err != nil {
		return ""
	}
	return string(out)
}

// ready is the message of the condition Ready, with its status and reason.
func (h house) ready(object string) string {
	return h.field(object, `{range .status.conditions[?(@.type=="Ready")]}{.status} {.reason} {.message}{end}`)
}

// show prints what is in the namespace, when a test has failed.
func (h house) show() {
	h.t.Helper()
	for _, args := range []string{"get talosclusters,imagerolls,jobs,pods -o wide", "get talosclusters,imagerolls -o yaml", "get events"} {
		words := append([]string{"kubectl", "--kubeconfig", filepath.Join(h.plane.Dir, "kubeconfig"), "-n", h.namespace}, split(args)...)
		ctx, cancel := context.WithTimeout(context.WithoutCancel(h.t.Context()), time.Minute)
		out, _ := exec.CommandContext(ctx, process.Built(h.t, "controlplane"), words...).CombinedOutput()
		cancel()
		h.t.Logf("kubectl %s\n%s", args, out)
	}
	h.showPods()
}

// showPods prints the end of what the containers of the namespace said.
func (h house) showPods() {
	for _, n := range h.nodes {
		for _, c := range n.Containers() {
			if c.Namespace == h.namespace || c.Namespace == "recast-system" {
				out := n.Output(c)
				h.t.Logf("%s/%s on %s:\n%s", c.Namespace, c.Pod, n.Name, out[max(0, len(out)-3000):])
			}
		}
	}
}

// kill sends SIGKILL to the container of the newest pod whose name begins like that. It says whether one ran.
func (h house) kill(namespace, prefix string) bool {
	h.t.Helper()
	for _, n := range h.nodes {
		for _, c := range n.Running() {
			if c.Namespace == namespace && strings.HasPrefix(c.Pod, prefix) && syscall.Kill(c.PID, syscall.SIGKILL) == nil {
				return true
			}
		}
	}
	return false
}

// lab is a Talos cluster on Proxmox.
type lab struct {
	dir, recast string
	env         []string
}

// startLab starts a lab in a process of its own.
func (h house) startLab(flags ...string) lab {
	h.t.Helper()
	l := lab{dir: filepath.Join(h.t.TempDir(), "lab"), recast: h.binary("recast")}
	cmd := exec.Command(l.recast, append([]string{"lab", "up", "--dir", l.dir, "--speed", *speed}, flags...)...)
	p := process.Start(h.t, "the lab", cmd)
	for range 1200 {
		if env, err := os.ReadFile(filepath.Join(l.dir, "env")); err == nil {
			if _, err := os.Stat(filepath.Join(l.dir, "lab.json")); err == nil {
				for line := range strings.Lines(string(env)) {
					if setting, is := strings.CutPrefix(strings.TrimSpace(line), "export "); is {
						l.env = append(l.env, strings.ReplaceAll(setting, "'", ""))
					}
				}
				return l
			}
		}
		select {
		case <-p.Ended():
			h.t.Fatalf("the lab has ended:\n%s", p.Said)
		case <-time.After(100 * time.Millisecond):
		}
	}
	h.t.Fatalf("the lab is not ready after two minutes:\n%s", p.Said)
	return l
}

// variable is one of those that the lab exports.
func (l lab) variable(name string) string {
	for _, line := range l.env {
		if value, ok := strings.CutPrefix(line, name+"="); ok {
			return value
		}
	}
	return ""
}

func (l lab) file(t *testing.T, name string) string {
	t.Helper()
	return string(must(os.ReadFile(filepath.Join(l.dir, name)))(t))
}

// run runs recast beside the lab, as its administrator does.
func (l lab) run(t *testing.T, args string) (string, int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	c := exec.CommandContext(ctx, l.recast, strings.Fields(args)...)
	c.Dir, c.Env = l.dir, append(os.Environ(), append(l.env, "NO_COLOR=1", "HOME="+l.dir)...)
	out, err := c.CombinedOutput()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return string(out), exit.ExitCode()
	}
	mustDo(t, err)
	return string(out), 0
}

// must is the value of a call, whose error ends the test: must(os.ReadFile(name))(t).
func must[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		mustDo(t, err)
		return v
	}
}

func mustDo(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
