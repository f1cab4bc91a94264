package kube_test

import (
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	pki "github.com/siderolabs/crypto/x509"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/kube"
	"github.com/recast-sh/recast/internal/sim/kubeapi"
	"github.com/recast-sh/recast/internal/sim/kubeapi/store"
	"github.com/recast-sh/recast/internal/sim/must"
	"github.com/recast-sh/recast/internal/sim/network"
	"github.com/recast-sh/recast/internal/sim/record"
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
		want[0].UID = string(must.Get(l.Node(t.Context(), "wk1"))(t).UID)
		must.Equal(t, "nodes", want, got, cmp.Comparer(func(a, b netip.Addr) bool { return a == b }))
		must.Equal(t, "one", got[0], must.Get(c.Node(t.Context(), "wk1"))(t), cmp.Comparer(func(a, b netip.Addr) bool { return a == b }))
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
				return connect(t, l.net, l.ca.CrtPEM, issue(t, newAuthority(t), "admin", "system:masters"))
			}, fault.Failed, "does not accept the kubeconfig's credentials",
		},
		"user without rights": {
			func(t *testing.T, l *lab) *kube.Client { return l.client(t) }, fault.Refused, `User "admin" cannot list resource "nodes"`,
		},
		"server of another authority": {
			func(t *testing.T, l *lab) *kube.Client {
				return connect(t, l.net, newAuthority(t).CrtPEM, issue(t, l.ca, "admin"))
			}, fault.Failed, "is not the server that the kubeconfig names",
		},
		"nothing listens": {
			func(t *testing.T, l *lab) *kube.Client {
				return connect(t, network.Memory(), l.ca.CrtPEM, issue(t, l.ca, "admin"))
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
		t.Cleanup(func() { must.Do(t, <-served) })
		return netip.MustParseAddrPort(addr)
	}
	ready := serve("127.42.7.11:6443", false)
	unready := serve("127.42.7.12:7443", true)
	must.Equal(t, "version", "v1.36.1", must.Get(c.APIServer(t.Context(), ready))(t))
	err := must.Err(c.APIServer(t.Context(), unready))
	must.Equal(t, "error", "127.42.7.12:7443 is not ready: poststarthook/rbac/bootstrap-roles", fmt.Sprint(err))
	err = must.Err(c.APIServer(t.Context(), netip.MustParseAddrPort("127.42.7.13:6443")))
	must.Contain(t, "hints", strings.Join(fault.Hints(err), " "), "recast has to reach the API server of every control plane")
}

// TestForeignAPIServer is not trusted.
func TestForeignAPIServer(t *testing.T) {
	t.Parallel()
	l, other := newLab(t), newLab(t)
	c := connect(t, other.net, l.ca.CrtPEM, issue(t, l.ca, "admin", "system:masters"))
	must.Fail(t, must.Err(c.APIServer(t.Context(), netip.MustParseAddrPort(apiAddr))), "certificate")
}

func TestOtherOwners(t *testing.T) {
	must.Bubble(t, func(t *testing.T) {
		l := newLab(t)
		c := l.client(t, "system:masters")
		owners := func() []string {
			t.Helper()
			return must.Get(c.OtherOwners(t.Context()))(t)
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
	crt, end := a.CrtPEM, a.Crt.NotAfter
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

const rollAnnotation = "recast.dev/roll"

func mark(run string) cluster.Mark {
	return cluster.Mark{Run: run, Strategy: cluster.Recreate, Build: "3f2a", BootID: "boot-1-wk1"}
}

// cordoned is what people can see of a cordon.
type cordoned struct {
	Unschedulable bool
	Mark          string
}

func (l *lab) cordon(t *testing.T) cordoned {
	t.Helper()
	n := must.Get(l.Node(t.Context(), "wk1"))(t)
	return cordoned{n.Spec.Unschedulable, n.Annotations[rollAnnotation]}
}

const (
	ours    = `{"run":"r2","strategy":"recreate","build":"3f2a","boot":"boot-1-wk1"}`
	foreign = `{"run":"r2","strategy":"recreate","build":"3f2a","boot":"boot-1-wk1","foreign":true}`
)

func TestCordonAndUncordon(t *testing.T) {
	t.Parallel()
	type row struct {
		before cordoned
		why    cluster.Mark
		during cordoned
		writes int // of Cordon
		after  cordoned
	}
	cases := map[string]row{
		"uncordoned":                {why: mark("r2"), during: cordoned{true, ours}, writes: 1},
		"someone else's":            {cordoned{true, ""}, mark("r2"), cordoned{true, foreign}, 1, cordoned{true, ""}},
		"ours of this run":          {cordoned{true, ours}, mark("r2"), cordoned{true, ours}, 0, cordoned{}},
		"ours of another run":       {cordoned{true, `{"run":"r1"}`}, mark("r2"), cordoned{true, ours}, 1, cordoned{}},
		"foreign in another run":    {cordoned{true, `{"run":"r1","foreign":true}`}, mark("r2"), cordoned{true, foreign}, 1, cordoned{true, ""}},
		"foreign, and lifted since": {cordoned{false, `{"run":"r1","foreign":true}`}, mark("r2"), cordoned{true, ours}, 1, cordoned{}},
		"ours, and lifted since":    {cordoned{false, ours}, mark("r2"), cordoned{true, ours}, 1, cordoned{}},
		"remembered as foreign": {
			cordoned{},
			cluster.Mark{Run: "r2", Strategy: cluster.Recreate, Build: "3f2a", BootID: "boot-1-wk1", Foreign: true},
			cordoned{true, foreign},
			1,
			cordoned{true, ""},
		},
	}
	must.Bubbles(t, cases, func(t *testing.T, tc row) {
		l := upLab(t, "wk1")
		l.change(t, "wk1", func(n *corev1.Node) {
			n.Spec.Unschedulable = tc.before.Unschedulable
			if tc.before.Mark != "" {
				n.Annotations[rollAnnotation] = tc.before.Mark
			}
		})
		c := l.client(t, "system:masters")
		must.Do(t, c.Cordon(t.Context(), "wk1", tc.why))
		must.Equal(t, "cordoned", tc.during, l.cordon(t))
		must.Equal(t, "cordon took writes", tc.writes, l.calls.Mutations())
		for range 2 { // the second has nothing to do
			must.Do(t, c.Uncordon(t.Context(), "wk1"))
		}
		must.Equal(t, "uncordoned", tc.after, l.cordon(t))
		must.Equal(t, "cordon and uncordon took writes", tc.writes+1, l.calls.Mutations())
	})
}

func TestUncordonLeavesACordonWithoutMark(t *testing.T) {
	must.Bubble(t, func(t *testing.T) {
		l := upLab(t, "wk1")
		l.change(t, "wk1", func(n *corev1.Node) { n.Spec.Unschedulable = true })
		must.Do(t, l.client(t, "system:masters").Uncordon(t.Context(), "wk1"))
		must.Equal(t, "cordon", cordoned{true, ""}, l.cordon(t))
	})
}

// Someone cordons the node between our read and our write: that cordon must not count as ours.
func TestCordonSeesWhoWasFaster(t *testing.T) {
	must.Bubble(t, func(t *testing.T) {
		l := upLab(t, "wk1")
		tries := 0
		l.calls.Hooks(func(call record.Call) error {
			if call.Method == http.MethodPatch {
				if tries++; tries == 1 {
					l.change(t, "wk1", func(n *corev1.Node) { n.Spec.Unschedulable = true })
				}
			}
			return nil
		}, nil)
		must.Do(t, l.client(t, "system:masters").Cordon(t.Context(), "wk1", mark("r2")))
		must.Equal(t, "cordon", cordoned{true, foreign}, l.cordon(t))
		must.Equal(t, "tries", 2, tries)
	})
}

func TestCordonGivesUpOnANodeThatNeverRests(t *testing.T) {
	must.Bubble(t, func(t *testing.T) {
		l := upLab(t, "wk1")
		l.calls.Hooks(func(call record.Call) error {
			if call.Method == http.MethodPatch {
				l.change(t, "wk1", func(n *corev1.Node) { n.Labels["at"] = time.Now().Format("150405") })
			}
			return nil
		}, nil)
		err := l.client(t, "system:masters").Cordon(t.Context(), "wk1", mark("r2"))
		must.Fail(t, err, "changed by someone else meanwhile")
		must.Equal(t, "cordoned despite the error", false, l.cordon(t).Unschedulable)
	})
}

func TestMarksOutliveTheMachine(t *testing.T) {
	must.Bubble(t, func(t *testing.T) {
		l := upLab(t, "wk1")
		c := l.client(t, "system:masters")
		must.Do(t, c.Cordon(t.Context(), "wk1", mark("r2")))
		must.Do(t, c.SetFailedBuild(t.Context(), "wk1", "9c41"))
		l.NodeDown(node("wk1", 0).UUID)
		time.Sleep(time.Minute)
		again := node("wk1", 0)
		again.BootID = "boot-2-wk1"
		l.NodeUp(again)
		time.Sleep(10 * time.Second)
		nodes, err := c.Nodes(t.Context())
		must.Equal(t, "nodes, error", []any{1, nil}, []any{len(nodes), err})
		type view struct {
			BootID, FailedBuild string
			Unschedulable       bool
			Mark                *cluster.Mark
		}
		want := view{"boot-2-wk1", "9c41", true, new(mark("r2"))}
		must.Equal(t, "node after its reboot", want, view{nodes[0].BootID, nodes[0].FailedBuild, nodes[0].Unschedulable, nodes[0].Mark})
		metadata := cluster.NodeMetadata{Annotations: map[string]string{rollAnnotation: "{}"}}
		must.Do(t, c.RestoreMetadata(t.Context(), "wk1", metadata))
		must.Equal(t, "after RestoreMetadata", cordoned{true, ours}, l.cordon(t))
	})
}

func TestSetFailedBuild(t *testing.T) {
	must.Bubble(t, func(t *testing.T) {
		l := upLab(t, "wk1")
		c := l.client(t, "system:masters")
		type view struct {
			Build  string
			There  bool
			Writes int
		}
		var got []view
		for _, build := range []string{"", "b1", "b1", "b2", "", ""} {
			must.Do(t, c.SetFailedBuild(t.Context(), "wk1", build))
			n := must.Get(l.Node(t.Context(), "wk1"))(t)
			is, there := n.Annotations["recast.dev/failed-build"]
			got = append(got, view{is, there, l.calls.Mutations()})
		}
		want := []view{{"", false, 0}, {"b1", true, 1}, {"b1", true, 1}, {"b2", true, 2}, {"", false, 3}, {"", false, 3}}
		must.Equal(t, "got", want, got)
	})
}

func TestAMarkThatCannotBeReadStopsEverything(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"yes", "", "{}", `{"run":7}`, "null"} {
		t.Run(text, func(t *testing.T) {
			must.Bubble(t, func(t *testing.T) {
				l := upLab(t, "wk1")
				l.change(t, "wk1", func(n *corev1.Node) { n.Annotations[rollAnnotation] = text })
				c := l.client(t, "system:masters")
				_, nodesErr := c.Nodes(t.Context())
				for what, err := range map[string]error{
					"Nodes": nodesErr, "Cordon": c.Cordon(t.Context(), "wk1", mark("r2")), "Uncordon": c.Uncordon(t.Context(), "wk1"),
				} {
					must.Hold(t, err != nil && strings.Contains(err.Error(), "annotation recast.dev/roll of node wk1") && len(fault.Hints(err)) == 1,
						"%s: %v, hints %q", what, err, fault.Hints(err))
				}
				must.Equal(t, "writes", 0, l.calls.Mutations())
			})
		})
	}
}

func TestMarksOfAMissingNode(t *testing.T) {
	t.Parallel()
	must.Bubbles(t, map[string]func(c *kube.Client, t *testing.T) error{
		"cordon":       func(c *kube.Client, t *testing.T) error { return c.Cordon(t.Context(), "wk9", mark("r2")) },
		"uncordon":     func(c *kube.Client, t *testing.T) error { return c.Uncordon(t.Context(), "wk9") },
		"failed build": func(c *kube.Client, t *testing.T) error { return c.SetFailedBuild(t.Context(), "wk9", "b") },
		"booted":       func(c *kube.Client, t *testing.T) error { return c.SetBooted(t.Context(), "wk9", cluster.Booted{}) },
	}, func(t *testing.T, f func(c *kube.Client, t *testing.T) error) {
		l := newLab(t, "wk1")
		must.FailIs(t, f(l.client(t, "system:masters"), t), cluster.ErrNotFound)
	})
}

// TestCordonSurvivesFaults: the effect of a change with a lost answer is seen at
// the next look, and what is missing is then done.
func TestCordonSurvivesFaults(t *testing.T) {
	t.Parallel()
	answer := func(code int32) func(*lab) {
		return func(l *lab) {
			struck := false
			l.SetWebhook("etcd.example.com", func(r kubeapi.Request) *metav1.Status {
				if r.Resource != "nodes" || struck {
					return nil
				}
				struck = true
				return &metav1.Status{Code: code, Message: "etcdserver: request timed out"}
			})
		}
	}
	must.Bubbles(t, map[string]func(*lab){
		"the answer is lost": (*lab).loseAnswer,
		"the change is lost": (*lab).loseChange,
		"a server's error":   answer(http.StatusInternalServerError),
		"too many requests":  answer(http.StatusTooManyRequests),
	}, func(t *testing.T, strike func(*lab)) {
		l := upLab(t, "wk1")
		strike(l)
		must.Do(t, l.client(t, "system:masters").Cordon(t.Context(), "wk1", mark("r2")))
		must.Equal(t, "cordon", cordoned{true, ours}, l.cordon(t))
	})
}

// TestCordonGivesUp: at once if waiting cannot help, else within its minute.
func TestCordonGivesUp(t *testing.T) {
	t.Parallel()
	type row struct {
		strike func(*lab)
		within time.Duration
		text   string
	}
	must.Bubbles(t, map[string]row{
		"it is denied": {
			func(l *lab) {
				l.SetWebhook("hours.example.com", func(r kubeapi.Request) *metav1.Status {
					return &metav1.Status{Code: http.StatusForbidden, Reason: metav1.StatusReasonForbidden, Message: "not during trading hours"}
				})
			}, time.Second, "not during trading hours",
		},
		"the API is unavailable": {
			func(l *lab) { l.fails("connection reset by peer") },
			62 * time.Second, "cordon node wk1: gave up after 1m0s; last seen: no answer from https://127.42.7.10:6443",
		},
	}, func(t *testing.T, c row) {
		l := upLab(t, "wk1")
		client := l.client(t, "system:masters")
		c.strike(l)
		start := time.Now()
		err := client.Cordon(t.Context(), "wk1", mark("r2"))
		must.Fail(t, err, c.text)
		must.Equal(t, "hints", 1, len(fault.Hints(err)))
		must.Take(t, start, 0, c.within)
		must.Equal(t, "cordoned", false, l.cordon(t).Unschedulable)
	})
}

// volumes is a gate that volumes pass only with that robustness.
func volumes(edit func(*cluster.ObjectGate)) cluster.ObjectGate {
	g := cluster.ObjectGate{APIVersion: "longhorn.io/v1beta2", Kind: "Volume", Expr: "status.robustness == 'healthy'"}
	if edit != nil {
		edit(&g)
	}
	return g
}

func TestJudge(t *testing.T) {
	must.Bubble(t, func(t *testing.T) {
		l := newLab(t, "wk1")
		add := l.install(t, "longhorn.io", "v1beta2", "volumes", "Volume", true)
		for _, v := range []struct{ namespace, name, tier, robustness string }{
			{"a", "pvc-1", "gold", "healthy"}, {"a", "pvc-2", "iron", "degraded"}, {"b", "pvc-1", "gold", "faulted"},
		} {
			u := &unstructured.Unstructured{Object: map[string]any{"status": map[string]any{"robustness": v.robustness}}}
			u.SetName(v.name)
			u.SetLabels(map[string]string{"tier": v.tier})
			add(v.namespace, v.name, u.Object)
		}
		c := l.client(t, "system:masters")
		time.Sleep(time.Minute) // until the node is there
		degraded := cluster.FailingObject{Name: "a/pvc-2", Why: "status.robustness=degraded"}
		faulted := cluster.FailingObject{Name: "b/pvc-1", Why: "status.robustness=faulted"}
		cases := map[string]struct {
			gate cluster.ObjectGate
			want cluster.Judged
		}{
			"all":            {volumes(nil), cluster.Judged{Objects: 3, Failing: []cluster.FailingObject{degraded, faulted}}},
			"of a namespace": {volumes(func(g *cluster.ObjectGate) { g.Namespace = "a" }), cluster.Judged{Objects: 2, Failing: []cluster.FailingObject{degraded}}},
			"by a label":     {volumes(func(g *cluster.ObjectGate) { g.Labels = "tier in (gold)" }), cluster.Judged{Objects: 2, Failing: []cluster.FailingObject{faulted}}},
			"one":            {volumes(func(g *cluster.ObjectGate) { g.Namespace, g.Name = "a", "pvc-1" }), cluster.Judged{Objects: 1}},
			"one, not there": {volumes(func(g *cluster.ObjectGate) { g.Namespace, g.Name = "a", "pvc-9" }), cluster.Judged{}},
			"of the core": {
				cluster.ObjectGate{APIVersion: "v1", Kind: "Node", Name: "wk1", Expr: "spec.unschedulable"},
				cluster.Judged{Objects: 1, Failing: []cluster.FailingObject{{Name: "wk1", Why: "spec.unschedulable=(none): no such key: unschedulable"}}},
			},
			"of apps": {
				cluster.ObjectGate{APIVersion: "apps/v1", Kind: "Deployment", Namespace: "kube-system", Expr: "spec.replicas == 2"}, cluster.Judged{Objects: 1},
			},
			"no such group":   {volumes(func(g *cluster.ObjectGate) { g.APIVersion = "ceph.rook.io/v1" }), cluster.Judged{Unserved: "ceph.rook.io is not installed: the API has no group of that name"}},
			"no such version": {volumes(func(g *cluster.ObjectGate) { g.APIVersion = "longhorn.io/v1" }), cluster.Judged{Unserved: "longhorn.io is served as v1beta2, not as v1"}},
			"no such kind":    {volumes(func(g *cluster.ObjectGate) { g.Kind = "Volumes" }), cluster.Judged{Unserved: "longhorn.io/v1beta2 has no kind Volumes, only Volume"}},
		}
		for name, tc := range cases {
			must.Equal(t, name, tc.want, must.Get(c.Judge(t.Context(), tc.gate))(t))
		}
	})
}

// More objects than fit into one answer are all evaluated.
func TestJudgePages(t *testing.T) {
	must.Bubble(t, func(t *testing.T) {
		l := newLab(t)
		add := l.install(t, "longhorn.io", "v1beta2", "volumes", "Volume", true)
		for i := range 1201 {
			robustness := "healthy"
			if i%400 == 0 {
				robustness = "degraded"
			}
			add("a", fmt.Sprintf("pvc-%04d", i), map[string]any{"status": map[string]any{"robustness": robustness}})
		}
		got, err := l.client(t, "system:masters").Judge(t.Context(), volumes(nil))
		must.Hold(t, err == nil && got.Objects == 1201 && len(got.Failing) == 4 && got.Failing[3].Name == "a/pvc-1200",
			"%d objects, %d fail: %v", got.Objects, len(got.Failing), err)
		must.Equal(t, "requests", 3, len(cluster.Where(l.calls.Calls(), func(call record.Call) bool {
			return strings.Contains(fmt.Sprint(call), "/apis/longhorn.io/v1beta2/volumes")
		})))
	})
}

// What cannot be read is an error with its cause; missing rights are refused.
func TestJudgeErrors(t *testing.T) {
	t.Parallel()
	resources := page{200, `{"kind":"APIResourceList","groupVersion":"longhorn.io/v1beta2","resources":[` +
		`{"name":"volumes","kind":"Volume","namespaced":true,"verbs":["get","list"]},{"name":"volumes/status","kind":"Volume","verbs":["get"]},` +
		`{"name":"reviews","kind":"Review","verbs":["create"]}]}`}
	groups := page{200, `{"kind":"APIGroupList","apiVersion":"v1","groups":[{"name":"longhorn.io","versions":[{"groupVersion":"longhorn.io/v1beta2","version":"v1beta2"}]}]}`}
	const list = "/apis/longhorn.io/v1beta2/volumes"
	type row struct {
		gate  cluster.ObjectGate
		pages map[string]page
		want  string
		kind  fault.Kind
	}
	cases := map[string]row{
		"forbidden":     {volumes(nil), map[string]page{list: forbidden(t, "volumes", "longhorn.io")}, "volumes: ", fault.Refused},
		"no list":       {volumes(nil), map[string]page{list: {200, `{"kind":"Volume"}`}}, "read volumes: the answer is not a list", fault.Failed},
		"not JSON":      {volumes(nil), map[string]page{list: {200, `<html>`}}, "read volumes: read the answer: ", fault.Failed},
		"out of date":   {volumes(nil), map[string]page{list: {410, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Expired","code":410,"message":"too old"}`}}, "read volumes: the list went out of date while it was read, 3 times in a row: too old", fault.Failed},
		"no discovery":  {volumes(nil), map[string]page{"/apis": {503, "upgrading"}}, "list API groups: ", fault.Failed},
		"a review":      {volumes(func(g *cluster.ObjectGate) { g.Kind = "Review" }), nil, "", fault.Failed},
		"no namespace":  {volumes(func(g *cluster.ObjectGate) { g.Name = "a" }), nil, "longhorn.io/v1beta2 Volume is in a namespace, and the gate names none", fault.Refused},
		"no expression": {volumes(func(g *cluster.ObjectGate) { g.Expr = "statu" }), nil, `expression "statu": not a valid expression: 1:1: undeclared reference to 'statu'`, fault.Config},
	}
	must.Each(t, cases, func(t *testing.T, tc row) {
		pages := map[string]page{"/apis": groups, "/apis/longhorn.io/v1beta2": resources}
		maps.Copy(pages, tc.pages)
		got, err := serve(t, pages).Judge(t.Context(), tc.gate)
		if tc.want == "" {
			must.Hold(t, err == nil && strings.Contains(got.Unserved, "has no kind Review, only "), "%+v, %v", got, err)
			return
		}
		must.FailAs(t, err, tc.kind, tc.want)
	})
}

func TestParseSelector(t *testing.T) {
	t.Parallel()
	has := map[string]string{"zone": "a", "tier": "web"}
	for text, want := range map[string]bool{
		"zone=a": true, "zone==a,tier!=db": true, "tier in (web, db)": true, "zone,!gpu": true,
		"zone=b": false, "gpu": false, "tier notin (web)": false,
	} {
		s, err := kube.ParseSelector(text)
		must.Hold(t, err == nil && s.Text == text && s.Matches(has) == want, "%s: %v, want %v; %v", text, !want, want, err)
	}
	for _, text := range []string{"", " ", "zone in a", "zone=a b", "a=b=c"} {
		must.FailAs(t, must.Err(kube.ParseSelector(text)), fault.Config, "selector ")
	}
}

const apiAddr = "127.42.7.10:6443"

// lab is an API in memory with three workers starting up.
type lab struct {
	*kubeapi.Server
	net   *network.Network
	calls *record.Recorder
	ca    *pki.CertificateAuthority
	who   kubeapi.Identity
}

func newLab(t *testing.T, nodes ...string) *lab {
	t.Helper()
	l := &lab{net: network.Memory(), calls: record.New(), ca: newAuthority(t)}
	server := issue(t, l.ca, "kube-apiserver")
	clients := x509.NewCertPool()
	clients.AddCert(l.ca.Crt)
	l.who = kubeapi.Identity{Version: "v1.35.4", Certificate: server.Certificate, ClientCA: clients}
	l.Server = must.Get(kubeapi.New(t.Context(), kubeapi.Options{Version: "v1.35.4", Recorder: l.calls}))(t)
	listener := must.Get(l.net.Listen(apiAddr))(t)
	served := make(chan error, 1)
	go func() { served <- l.Serve(t.Context(), listener, l.who) }()
	t.Cleanup(func() {
		must.Do(t, l.Close())
		must.Do(t, <-served)
	})
	for i, name := range nodes {
		l.NodeUp(node(name, i))
	}
	return l
}

// upLab is a lab whose nodes have started.
func upLab(t *testing.T, nodes ...string) *lab {
	t.Helper()
	l := newLab(t, nodes...)
	time.Sleep(10 * time.Second)
	return l
}

func node(name string, i int) kubeapi.NodeInfo {
	return kubeapi.NodeInfo{
		Name: name, UUID: "4c4c4544-0000-4000-8000-00000000000" + string(rune('1'+i)), BootID: "boot-1-" + name,
		KubeletVersion: "v1.35.4", OSImage: "Talos (v1.13.9)", Addresses: []string{"127.42.7.3" + string(rune('1'+i))},
		Annotations: map[string]string{"talos.dev/owned-labels": "[]"},
	}
}

// client is recast's, with the rights of that organization.
func (l *lab) client(t *testing.T, organization ...string) *kube.Client {
	t.Helper()
	return connect(t, l.net, l.ca.CrtPEM, issue(t, l.ca, "admin", organization...))
}

func connect(t *testing.T, net *network.Network, ca []byte, pair *pki.KeyPair) *kube.Client {
	t.Helper()
	return connectAs(t, cluster.OwnPod{}, net, ca, pair)
}

func connectAs(t *testing.T, own cluster.OwnPod, net *network.Network, ca []byte, pair *pki.KeyPair) *kube.Client {
	t.Helper()
	kubeconfig, err := kubeapi.Kubeconfig("lab", "https://"+apiAddr, ca, pair.CrtPEM, pair.KeyPEM)
	must.Do(t, err)
	c := must.Get(kube.New(kubeconfig, kube.Options{Dial: net.Dialer().DialContext, Poll: 2 * time.Second, Own: own}))(t)
	t.Cleanup(func() { must.Do(t, c.Close()) })
	return c
}

// change edits a node, bypassing the API.
func (l *lab) change(t *testing.T, name string, edit func(n *corev1.Node)) {
	t.Helper()
	n := must.Get(l.Node(t.Context(), name))(t)
	edit(n)
	must.Get(l.Store().Update(t.Context(), store.Nodes(), n, store.Main))(t)
}

// atFirstPatch acts before the first PATCH, which fails with the error of the act.
func (l *lab) atFirstPatch(act func() error) {
	struck := false
	l.calls.Hooks(func(c record.Call) error {
		if c.Method != http.MethodPatch || struck {
			return nil
		}
		struck = true
		return act()
	}, nil)
}

// loseChange loses the first PATCH, and loseAnswer the answer to it.
func (l *lab) loseChange() {
	l.atFirstPatch(func() error { return errors.New("connection reset by peer") })
}

func (l *lab) loseAnswer() {
	struck := false
	l.calls.Hooks(nil, func(c record.Call) {
		if c.Method == http.MethodPatch && !struck {
			struck = true
			panic(http.ErrAbortHandler)
		}
	})
}

// put creates an object of the lab, bypassing its API.
func (l *lab) put(t *testing.T, r schema.GroupVersionResource, o store.Object) {
	t.Helper()
	must.Get(l.Store().Create(t.Context(), r, o))(t)
}

func newAuthority(t *testing.T) *pki.CertificateAuthority {
	t.Helper()
	return must.Get(pki.NewSelfSignedCertificateAuthority(pki.ECDSA(true), pki.CommonName("kubernetes")))(t)
}

func issue(t *testing.T, ca *pki.CertificateAuthority, name string, organization ...string) *pki.KeyPair {
	t.Helper()
	return must.Get(pki.NewKeyPair(ca, pki.CommonName(name), pki.Organization(organization...), pki.IPAddresses([]net.IP{net.ParseIP("127.42.7.10")}),
		pki.ExtKeyUsage([]x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth})))(t)
}
