package kube_test

import (
	"encoding/base64"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/kube"
	"github.com/recast-sh/recast/internal/sim/kubeapi/store"
	"github.com/recast-sh/recast/internal/sim/must"
	"github.com/recast-sh/recast/internal/sim/network"
)

func TestNodes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t)
		info := node("wk1", 0)
		info.UUID = "4C4C4544-0000-4000-8000-00000000000A"
		info.Labels = map[string]string{"rack": "a"}
		info.Taints = []corev1.Taint{{Key: "gpu", Value: "yes", Effect: corev1.TaintEffectNoSchedule}}
		l.NodeUp(info)
		time.Sleep(10 * time.Second)
		c := l.client(t, "system:masters")
		must.Do(t, c.Cordon(t.Context(), "wk1", mark("r1")))
		must.Do(t, c.SetFailedBuild(t.Context(), "wk1", "9c41"))
		l.change(t, "wk1", func(n *corev1.Node) { n.Spec.ProviderID = "proxmox://lab/9011" })
		time.Sleep(time.Second)
		got := must.Get(c.Nodes(t.Context()))(t)
		want := []cluster.KubeNode{{
			Name: "wk1", UUID: "4c4c4544-0000-4000-8000-00000000000a", BootID: "boot-1-wk1", MachineID: "4C4C4544-0000-4000-8000-00000000000A", Ready: true, Unschedulable: true,
			Mark: new(mark("r1")), FailedBuild: "9c41", ProviderID: "proxmox://lab/9011",
			KubeletVersion: "v1.35.4", Addresses: []netip.Addr{netip.MustParseAddr("127.42.7.31")},
			Metadata: cluster.NodeMetadata{
				Labels: map[string]string{
					"beta.kubernetes.io/arch": "amd64", "beta.kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64",
					"kubernetes.io/os": "linux", "kubernetes.io/hostname": "wk1", "rack": "a",
				},
				Annotations: map[string]string{
					"node.alpha.kubernetes.io/ttl": "0", "talos.dev/owned-labels": "[]",
					"recast.dev/roll":         `{"run":"r1","strategy":"recreate","build":"3f2a","boot":"boot-1-wk1"}`,
					"recast.dev/failed-build": "9c41",
					"volumes.kubernetes.io/controller-managed-attach-detach": "true",
				},
				Taints: []cluster.Taint{
					{Key: "gpu", Value: "yes", Effect: "NoSchedule"},
					{Key: "node.kubernetes.io/unschedulable", Effect: "NoSchedule"},
				},
			},
		}}
		n := must.Get(l.Node(t.Context(), "wk1"))(t)
		want[0].UID = string(n.UID)
		must.Equal(t, "nodes", want, got, cmp.Comparer(func(a, b netip.Addr) bool { return a == b }))
		one, err := c.Node(t.Context(), "wk1")
		must.Do(t, err)
		must.Equal(t, "one", got[0], one, cmp.Comparer(func(a, b netip.Addr) bool { return a == b }))
		must.FailIs(t, must.Err(c.Node(t.Context(), "wk2")), cluster.ErrNotFound)
	})
}

func TestRestoreMetadata(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := upLab(t, "wk1")
		c := l.client(t, "system:masters")
		remembered := cluster.NodeMetadata{
			Labels:      map[string]string{"rack": "a", "kubernetes.io/hostname": "old"},
			Annotations: map[string]string{"note": "hello", "flannel.alpha.coreos.com/backend-data": `{"VtepMAC":"old"}`},
			Taints: []cluster.Taint{
				{Key: "gpu", Effect: "NoSchedule"}, {Key: "node.kubernetes.io/unschedulable", Effect: "NoSchedule"},
			},
		}
		// Someone else writes between our read and our write.
		l.atFirstPatch(func() error {
			l.change(t, "wk1", func(n *corev1.Node) { n.Labels["other"] = "writer" })
			return nil
		})
		must.Do(t, c.RestoreMetadata(t.Context(), "wk1", remembered))
		l.calls.Hooks(nil, nil)
		n := must.Get(l.Node(t.Context(), "wk1"))(t)
		type view struct{ Rack, Hostname, Other, Note, Flannel, Taint string }
		got := view{
			n.Labels["rack"], n.Labels["kubernetes.io/hostname"], n.Labels["other"],
			n.Annotations["note"], n.Annotations["flannel.alpha.coreos.com/backend-data"], "",
		}
		for _, taint := range n.Spec.Taints {
			got.Taint += taint.ToString()
		}
		must.Equal(t, "node", view{"a", "wk1", "writer", "hello", "", "gpu:NoSchedule"}, got)
		writes := l.calls.Mutations()
		must.Do(t, c.RestoreMetadata(t.Context(), "wk1", remembered))
		must.Equal(t, "mutations", writes, l.calls.Mutations())
	})
}

func TestErrorsSayWhatIsWrong(t *testing.T) {
	type row struct {
		client func(t *testing.T, l *lab) *kube.Client
		kind   fault.Kind
		want   string
	}
	cases := map[string]row{
		"certificate of another authority": {
			func(t *testing.T, l *lab) *kube.Client {
				return connect(t, l.net, l.ca.cert, newAuthority(t).issue(t, "admin", []string{"system:masters"}))
			}, fault.Failed, "does not accept the kubeconfig's credentials",
		},
		"user without rights": {
			func(t *testing.T, l *lab) *kube.Client { return l.client(t) }, fault.Refused, `User "admin" cannot list resource "nodes"`,
		},
		"server of another authority": {
			func(t *testing.T, l *lab) *kube.Client {
				return connect(t, l.net, newAuthority(t).cert, l.ca.issue(t, "admin", nil))
			}, fault.Failed, "is not the server that the kubeconfig names",
		},
		"nothing listens": {
			func(t *testing.T, l *lab) *kube.Client {
				return connect(t, network.Memory(), l.ca.cert, l.ca.issue(t, "admin", nil))
			}, fault.Failed, "no answer from https://127.42.7.10:6443",
		},
	}
	must.Bubbles(t, cases, func(t *testing.T, tc row) {
		_, err := tc.client(t, newLab(t)).Nodes(t.Context())
		must.Fail(t, err, tc.want)
		must.Equal(t, "kind, hints", []any{tc.kind, 1}, []any{fault.KindOf(err), len(fault.Hints(err))})
	})
}

func TestNewRefusesWhatIsNoKubeconfig(t *testing.T) {
	t.Parallel()
	must.FailAs(t, must.Err(kube.New([]byte("apiVersion: v1\nkind: Secret\n"), kube.Options{})), fault.Config)
}

func TestPendingCertificates(t *testing.T) {
	must.Bubble(t, func(t *testing.T) {
		l := newLab(t)
		request := func(name, user, signer string, decided ...certificatesv1.RequestConditionType) *certificatesv1.CertificateSigningRequest {
			r := &certificatesv1.CertificateSigningRequest{
				ObjectMeta: metav1.ObjectMeta{Name: name},
				Spec:       certificatesv1.CertificateSigningRequestSpec{Username: user, SignerName: signer},
			}
			for _, d := range decided {
				r.Status.Conditions = append(r.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{Type: d, Status: corev1.ConditionTrue})
			}
			return r
		}
		serving, client := certificatesv1.KubeletServingSignerName, certificatesv1.KubeAPIServerClientKubeletSignerName
		issued := request("issued", "system:node:wk1", serving)
		issued.Status.Certificate = []byte("x")
		for _, r := range []*certificatesv1.CertificateSigningRequest{
			request("csr-b", "system:node:wk1", serving), request("csr-a", "system:node:wk1", serving), issued,
			request("other-node", "system:node:wk11", serving),
			request("client", "system:node:wk1", client),
			request("approved", "system:node:wk1", serving, certificatesv1.CertificateApproved),
			request("denied", "system:node:wk1", serving, certificatesv1.CertificateDenied),
			request("failed", "system:node:wk1", serving, certificatesv1.CertificateApproved, certificatesv1.CertificateFailed),
		} {
			l.put(t, store.CertificateRequests(), r)
		}
		got := must.Get(l.client(t, "system:masters").PendingCertificates(t.Context(), "wk1"))(t)
		must.Equal(t, "got", []string{"csr-a", "csr-b"}, got)
	})
}

// TestAPIServer: each server is asked at its own address, for which its certificate
// need not be, whether it serves; a mere answer does not count.
func TestAPIServer(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	c := l.client(t, "system:masters")
	serve := func(addr string, unready bool) netip.AddrPort {
		who := l.who
		who.Version, who.Unready = "v1.36.1", unready
		listener := must.Get(l.net.Listen(addr))(t)
		served := make(chan error, 1)
		go func() { served <- l.Serve(t.Context(), listener, who) }()
		t.Cleanup(func() {
			must.Do(t, <-served)
		})
		return netip.MustParseAddrPort(addr)
	}
	ready := serve("127.42.7.11:6443", false)
	unready := serve("127.42.7.12:7443", true)
	must.Equal(t, "version", "v1.36.1", must.Get(c.APIServer(t.Context(), ready))(t))
	err := must.Err(c.APIServer(t.Context(), unready))
	must.Equal(t, "error", "127.42.7.12:7443 is not ready: poststarthook/rbac/bootstrap-roles", fmt.Sprint(err))
	err = must.Err(c.APIServer(t.Context(), netip.MustParseAddrPort("127.42.7.13:6443")))
	hints := strings.Join(fault.Hints(err), " ")
	must.Contain(t, "hints", hints, "recast has to reach the API server of every control plane")
}

// TestForeignAPIServer is not trusted.
func TestForeignAPIServer(t *testing.T) {
	t.Parallel()
	l, other := newLab(t), newLab(t)
	c := connect(t, other.net, l.ca.cert, l.ca.issue(t, "admin", []string{"system:masters"}))
	must.Fail(t, must.Err(c.APIServer(t.Context(), netip.MustParseAddrPort(apiAddr))), "certificate")
}

func TestOtherOwners(t *testing.T) {
	must.Bubble(t, func(t *testing.T) {
		l := newLab(t)
		c := l.client(t, "system:masters")
		owners := func() []string {
			t.Helper()
			got := must.Get(c.OtherOwners(t.Context()))(t)
			return got
		}
		must.Equal(t, "nothing is installed, but", 0, len(owners()))
		talos := l.install(t, "tuppr.home-operations.com", "v1alpha1", "talosupgrades", "TalosUpgrade", false)
		kubernetes := l.install(t, "tuppr.home-operations.com", "v1alpha1", "kubernetesupgrades", "KubernetesUpgrade", false)
		plans := l.install(t, "upgrade.cattle.io", "v1", "plans", "Plan", true)
		must.Equal(t, "there is nothing to upgrade, but", 0, len(owners()))
		version := func(of, v string) map[string]any {
			return map[string]any{"spec": map[string]any{of: map[string]any{"version": v}}}
		}
		talos("", "cluster", version("talos", "v1.12.1"))
		suspended := version("talos", "v1.12.2")
		suspended["metadata"] = map[string]any{"annotations": map[string]any{"tuppr.home-operations.com/suspend": ""}}
		talos("", "later", suspended)
		kubernetes("", "kubernetes", version("kubernetes", "v1.36.0"))
		plans("system-upgrade", "os", map[string]any{"spec": map[string]any{"upgrade": map[string]any{"image": "ghcr.io/siderolabs/Talosctl"}}})
		plans("system-upgrade", "k3s", map[string]any{"spec": map[string]any{"upgrade": map[string]any{"image": "rancher/k3s-upgrade"}}})
		want := []string{
			"tuppr's TalosUpgrade cluster, which brings nodes to v1.12.1",
			"tuppr's KubernetesUpgrade kubernetes, which brings nodes to v1.36.0",
			"system-upgrade-controller's Plan system-upgrade/os, which mentions Talos",
		}
		must.Equal(t, "owners", want, owners())
	})
}

func TestExpires(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	crt, end := a.cert, a.leaf.NotAfter
	file := filepath.Join(t.TempDir(), "client.crt")
	must.Do(t, os.WriteFile(file, crt, 0o600))
	config := func(user string) string {
		return strings.ReplaceAll(`apiVersion: v1
kind: Config
current-context: c
contexts: [{name: c, context: {cluster: c, user: u}}]
clusters: [{name: c, cluster: {server: "https://127.0.0.1:6443"}}]
users: [{name: u, user: {USER}}]
`, "USER", user)
	}
	type row struct {
		kubeconfig string
		want       time.Time
	}
	must.Each(t, map[string]row{
		"in the file":      {config("client-key-data: a2V5, client-certificate-data: " + base64.StdEncoding.EncodeToString(crt)), end},
		"beside it":        {config("client-key-data: a2V5, client-certificate: " + file), end},
		"gone":             {config("client-key-data: a2V5, client-certificate: " + file + ".gone"), time.Time{}},
		"a token":          {config("token: t"), time.Time{}},
		"no certificate":   {config("client-key-data: a2V5, client-certificate-data: " + base64.StdEncoding.EncodeToString([]byte("x"))), time.Time{}},
		"not a kubeconfig": {"][", time.Time{}},
	}, func(t *testing.T, tc row) {
		must.Equal(t, "end", tc.want, kube.Expires([]byte(tc.kubeconfig)))
	})
}
