package sim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/recast-sh/recast/internal/sim/etcd"
	"github.com/recast-sh/recast/internal/sim/kubeapi"
	"github.com/recast-sh/recast/internal/sim/kubeapi/store"
	"github.com/recast-sh/recast/internal/sim/manifests"
	"github.com/recast-sh/recast/internal/sim/network"
	"github.com/recast-sh/recast/internal/sim/talosapi"
)

// upstream returns the real control plane behind the API, nil if the lab has none.
func (l *Lab) upstream() (*kubeapi.Upstream, error) {
	if l.o.Kubernetes == nil {
		return nil, nil
	}
	u, err := kubeapi.ReadUpstream(l.o.Kubernetes, nil)
	if err != nil {
		return nil, err
	}
	l.closers = append(l.closers, u.Close)
	return u, nil
}

// refused reports an error that the real control plane returned to the lab's kubelets.
func (l *Lab) refused(err error) { l.complain(fmt.Errorf("kubelets: %w", err)) }

// serveKubernetes serves the Kubernetes API until ctx ends: each API server at its machine's address, and one of them
// at the shared address. Nothing listens at the shared address while no API server runs.
func (l *Lab) serveKubernetes(ctx context.Context, shared string) {
	running := map[talosapi.APIServer]*apiServer{}
	front := &frontDoor{lab: l, addr: shared, ctx: ctx}
	for ctx.Err() == nil {
		servers, changed := l.machines.APIServers()
		wanted := map[talosapi.APIServer]bool{}
		for _, s := range servers {
			wanted[s] = true
		}
		for s, r := range running {
			if !wanted[s] {
				front.leave(r)
				r.end()
				delete(running, s)
			}
		}
		for _, s := range servers {
			if running[s] == nil {
				running[s] = l.startAPIServer(ctx, s)
				if s.Ready {
					front.join(running[s])
				}
			}
		}
		select {
		case <-ctx.Done():
		case <-changed:
		}
	}
	for _, r := range running {
		front.leave(r)
		r.end()
	}
}

// apiServer answers at its machine's address, and on connections handed over from the shared address.
type apiServer struct {
	shared *network.Queue
	cancel context.CancelFunc
	done   sync.WaitGroup
}

func (l *Lab) startAPIServer(ctx context.Context, s talosapi.APIServer) *apiServer {
	ctx, cancel := context.WithCancel(ctx)
	r := &apiServer{shared: network.NewQueue(), cancel: cancel}
	addr := net.JoinHostPort(s.Address.String(), kubernetesPort)
	who := kubeapi.Identity{Version: s.Version, Certificate: s.Certificate, ClientCA: s.Clients, Unready: !s.Ready}
	serve := func(on net.Listener) {
		r.done.Go(func() {
			if err := l.Kube.Serve(ctx, on, who); err != nil {
				l.complain(err)
			}
		})
	}
	own, err := l.o.Network.Listen(addr)
	if err != nil {
		l.complain(fmt.Errorf("listen on %s: %w", addr, err))
	} else {
		serve(own)
	}
	serve(r.shared)
	return r
}

// end closes every connection and waits for the handlers.
func (r *apiServer) end() {
	r.cancel()
	r.done.Wait()
}

func (l *Lab) complain(err error) {
	if l.o.Console != nil {
		fmt.Fprintf(l.o.Console, "Kubernetes API: %v\n", err)
	}
}

// frontDoor hands connections to the shared address to the API server that has run
// longest, like a load balancer with a preferred backend.
type frontDoor struct {
	lab  *Lab
	addr string
	ctx  context.Context // of the lab

	mu       sync.Mutex
	listener net.Listener // nil while no API server runs
	behind   []*apiServer
}

func (f *frontDoor) join(r *apiServer) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.behind = append(f.behind, r)
	if f.listener != nil {
		return
	}
	listener, err := f.lab.o.Network.Listen(f.addr)
	if err != nil {
		f.lab.complain(fmt.Errorf("listen on %s: %w", f.addr, err))
		return
	}
	f.listener = listener
	f.lab.serving.Go(func() { f.accept(listener) })
}

func (f *frontDoor) leave(r *apiServer) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.behind = slices.DeleteFunc(slices.Clone(f.behind), func(b *apiServer) bool { return b == r })
	if len(f.behind) == 0 && f.listener != nil {
		_ = f.listener.Close() // refuse new connections
		f.listener = nil
	}
}

func (f *frontDoor) accept(listener net.Listener) {
	for {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		f.mu.Lock()
		var to *apiServer
		if len(f.behind) > 0 {
			to = f.behind[0]
		}
		f.mu.Unlock()
		if to == nil || to.shared.Hand(f.ctx, conn) != nil {
			_ = conn.Close() // no API server takes it
		}
	}
}

// manifests returns the objects that Talos has applied to the lab's own cluster.
func (l *Lab) manifests() ([]map[string]any, error) {
	c := manifests.Of(l.Talos.KubernetesVersion)
	c.TokenID, c.TokenSecret, _ = strings.Cut(l.Talos.Secrets.Secrets.BootstrapToken, ".")
	all, err := manifests.Render(c)
	if err != nil {
		return nil, err
	}
	return manifests.Objects(all, !strings.HasPrefix(l.o.TalosVersion, "v1.12.")), nil
}

// objects are what the Kubernetes API keeps in etcd.
type objects struct{ lab *Lab }

var _ talosapi.Data = objects{}

func (o objects) Revision() uint64 { return o.lab.Kube.Revision() }

func (o objects) Dump(ctx context.Context) ([]etcd.KeyValue, error) {
	all, err := o.lab.Kube.Dump(ctx)
	var out []etcd.KeyValue
	for _, kv := range all {
		out = append(out, etcd.KeyValue(kv))
	}
	return out, err
}

func (o objects) Load(_ context.Context, data []etcd.KeyValue) error {
	var all []kubeapi.Stored
	for _, kv := range data {
		all = append(all, kubeapi.Stored(kv))
	}
	return o.lab.Kube.Load(all)
}

func (o objects) Renew(ctx context.Context, planted []map[string]any) error {
	return o.lab.Kube.Renew(ctx, planted)
}

// formEtcd creates the etcd cluster of the control planes as if bootstrapped long ago.
// It returns each member's data by node name.
func (l *Lab) formEtcd() map[string]talosapi.EtcdData {
	var peers []talosapi.EtcdPeer
	for _, n := range l.Nodes {
		if n.ControlPlane {
			peers = append(peers, talosapi.EtcdPeer{Name: n.Name, Addr: n.Addr})
		}
	}
	if len(peers) == 0 {
		return nil
	}
	out := map[string]talosapi.EtcdData{}
	for i, d := range l.machines.FormEtcd(l.Talos, peers...) {
		out[peers[i].Name] = d
	}
	return out
}

// EtcdMembers lists the members of etcd, by name.
func (l *Lab) EtcdMembers() []talosapi.EtcdMember { return l.machines.EtcdMembers() }

// EtcdViolations lists each loss of etcd's quorum after all members had run, and each second etcd that a bootstrap
// formed for one Talos cluster. Tests with several control planes expect an empty list.
func (l *Lab) EtcdViolations() []string {
	return append(l.machines.EtcdViolations(), l.machines.BootstrapViolations()...)
}

// NodeIDsBegin sets the first characters of the node IDs of machines that are installed from now on: lists sort by
// node ID.
func (l *Lab) NodeIDsBegin(with string) { l.machines.NodeIDsBegin(with) }

// BreakEtcd sets the fault of a control plane's etcd; the zero fault clears it.
func (l *Lab) BreakEtcd(node string, f talosapi.EtcdFault) error {
	id, err := l.vmid(node)
	if err != nil {
		return fmt.Errorf("break etcd: %w", err)
	}
	if slices.ContainsFunc(l.Nodes, func(n Node) bool { return n.Name == node && !n.ControlPlane }) {
		return fmt.Errorf("break etcd: %s is a worker", node)
	}
	l.machines.BreakEtcd(id, f)
	return nil
}

// addWorkload deploys a web server with two replicas for drains to move. With several workers, its budget allows one
// replica to be missing.
func addWorkload(ctx context.Context, s store.Store, workers int) error {
	labels := map[string]string{"app": "web"}
	web := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: metav1.NamespaceDefault, Labels: labels},
		Spec: appsv1.DeploymentSpec{
			Replicas: new(int32(2)), Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "web", Image: "registry.k8s.io/e2e-test-images/agnhost"}}},
			},
		},
	}
	if _, err := s.Create(ctx, store.Deployments(), web); err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("make Deployment web: %w", err)
	}
	if workers < 2 {
		return nil
	}
	budget := &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: metav1.NamespaceDefault},
		Spec:       policyv1.PodDisruptionBudgetSpec{MaxUnavailable: new(intstr.FromInt32(1)), Selector: &metav1.LabelSelector{MatchLabels: labels}},
	}
	if _, err := s.Create(ctx, store.Budgets(), budget); err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("make PodDisruptionBudget web: %w", err)
	}
	return nil
}

// ControlFile tells the commands that talk to a running lab where it is.
const ControlFile = "lab.json"

const controlPort = "7000"

type controlAddress struct {
	Control string `json:"control"` // URL
	Before  State  `json:"before"`  // when the lab came up
}

// Patch republishes an extension for each Talos version of the lab: same version, new digest. It returns the digest for
// Options.TalosVersion. Without restartFactory the factory keeps serving what it has cached.
func (l *Lab) Patch(ctx context.Context, extension string, restartFactory bool) (digest string, err error) {
	_, digest, err = l.Catalog.Patch(ctx, l.o.TalosVersion, extension)
	if err == nil && l.o.NextTalos != "" {
		_, _, err = l.Catalog.Patch(ctx, l.o.NextTalos, extension)
	}
	if err == nil && restartFactory {
		l.Factory.Restart()
	}
	return digest, err
}

// startControl serves the requests of recast lab's other commands.
func (l *Lab) startControl(ctx context.Context) error {
	mux := http.NewServeMux()
	handle := func(pattern string, do func(r *http.Request) (out string, err error)) {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			out, err := do(r)
			if err != nil {
				http.Error(w, err.Error(), http.StatusBadRequest)
				return
			}
			fmt.Fprint(w, out)
		})
	}
	handle("POST /patch/{extension}", func(r *http.Request) (string, error) {
		digest, err := l.Patch(r.Context(), r.PathValue("extension"), r.URL.Query().Get("stale-factory") == "")
		return digest + "\n", err
	})
	handle("POST /pveum", func(r *http.Request) (string, error) { return l.Pveum(r.URL.Query()["arg"]) })
	handle("POST /shell/{node}", func(r *http.Request) (string, error) {
		out, err := l.Shell(r.PathValue("node")).Run(r.URL.Query()["arg"])
		if err != nil {
			return "", errors.New(shellMessage(err))
		}
		return out, nil
	})
	handle("POST /slow/{server}", func(r *http.Request) (string, error) {
		d, err := time.ParseDuration(r.URL.Query().Get("for"))
		if err != nil {
			return "", err
		}
		return "", l.Slow(r.PathValue("server"), d)
	})
	mux.HandleFunc("GET /state", func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(l.State()) // fails only if the client is gone
	})
	return l.serveHTTP(ctx, l.controlAddr(), mux)
}

func (l *Lab) controlAddr() string { return l.o.at(controlNumber, controlPort) }

// Announce writes the lab's control address into a working directory, for the commands that run there.
func (l *Lab) Announce(dir string) error {
	b, err := json.Marshal(controlAddress{Control: "http://" + l.controlAddr(), Before: l.State()})
	if err != nil {
		return fmt.Errorf("announce the lab: %w", err)
	}
	if err := os.WriteFile(filepath.Join(dir, ControlFile), append(b, '\n'), 0o600); err != nil {
		return fmt.Errorf("announce the lab: %w", err)
	}
	return nil
}

// AskPatch makes the running lab of a working directory republish an extension; see Lab.Patch.
func AskPatch(ctx context.Context, dir, extension string, restartFactory bool) (digest string, err error) {
	query := url.Values{}
	if !restartFactory {
		query.Set("stale-factory", "1")
	}
	answer, err := order(ctx, dir, "/patch/"+url.PathEscape(extension), query)
	return strings.TrimSpace(answer), err
}

// AskPveum runs a pveum command in the running lab of a working directory.
func AskPveum(ctx context.Context, dir string, args []string) (string, error) {
	return order(ctx, dir, "/pveum", url.Values{"arg": args})
}

// AskShell runs a command in the shell of one of the running lab's Proxmox nodes.
func AskShell(ctx context.Context, dir, node string, args []string) (string, error) {
	return order(ctx, dir, "/shell/"+url.PathEscape(node), url.Values{"arg": args})
}

// AskSlow stalls an API of the running lab; see Lab.Slow.
func AskSlow(ctx context.Context, dir, server string, d time.Duration) error {
	_, err := order(ctx, dir, "/slow/"+url.PathEscape(server), url.Values{"for": {d.String()}})
	return err
}

// order sends a command to the running lab of a working directory.
func order(ctx context.Context, dir, path string, query url.Values) (string, error) {
	at, err := findLab(dir)
	if err != nil {
		return "", err
	}
	answer, err := ask(ctx, http.MethodPost, at.Control+path+"?"+query.Encode())
	return string(answer), err
}

func findLab(dir string) (at controlAddress, err error) {
	b, err := os.ReadFile(filepath.Join(dir, ControlFile))
	if err != nil {
		return at, fmt.Errorf("find the lab: %w", err)
	}
	if err := json.Unmarshal(b, &at); err != nil {
		return at, fmt.Errorf("find the lab: %s: %w", ControlFile, err)
	}
	return at, nil
}

func ask(ctx context.Context, method, target string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, method, target, nil)
	if err != nil {
		return nil, fmt.Errorf("ask the lab: %w", err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, fmt.Errorf("ask the lab: %w", err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err != nil {
		return nil, fmt.Errorf("ask the lab: %w", err)
	}
	if resp.StatusCode != http.StatusOK {
		return nil, errors.New(strings.TrimSpace(string(answer)))
	}
	return answer, nil
}
