package kube_test

import (
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
)

func TestOtherOwners(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t)
		c := l.client(t, "system:masters")
		owners := func() []string {
			t.Helper()
			got, err := c.OtherOwners(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			return got
		}
		if got := owners(); len(got) != 0 {
			t.Errorf("nothing is installed, but: %q", got)
		}
		talos := l.install(t, "tuppr.home-operations.com", "v1alpha1", "talosupgrades", "TalosUpgrade", false)
		kubernetes := l.install(t, "tuppr.home-operations.com", "v1alpha1", "kubernetesupgrades", "KubernetesUpgrade", false)
		plans := l.install(t, "upgrade.cattle.io", "v1", "plans", "Plan", true)
		if got := owners(); len(got) != 0 {
			t.Errorf("there is nothing to upgrade, but: %q", got)
		}
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
		if diff := cmp.Diff(want, owners()); diff != "" {
			t.Errorf("owners (-want +got):\n%s", diff)
		}
	})
}
