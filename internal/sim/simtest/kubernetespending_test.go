package simtest

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/client"

	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/kubeapi/store"
	"github.com/recast-sh/recast/internal/sim/talosapi"
)

// TestUpgradeKubernetesLeavesStagedConfigurations: a configuration that is staged for the
// next boot, or on trial, does not become active with a component's image.
func TestUpgradeKubernetesLeavesStagedConfigurations(t *testing.T) {
	long(t)
	type story struct {
		mode machineapi.ApplyConfigurationRequest_Mode
		over func(l *Lab)
	}
	eachInLab(t, oneWorker(), map[string]story{
		"staged": {machineapi.ApplyConfigurationRequest_STAGED, func(l *Lab) {
			l.talosctl("wk1", func(ctx context.Context, c *client.Client) error { return c.Reboot(ctx) })
			time.Sleep(2 * time.Minute)
		}},
		"tried": {machineapi.ApplyConfigurationRequest_TRY, func(*Lab) { time.Sleep(2 * time.Minute) }},
	}, func(t *testing.T, lab *Lab, c story) {
		config := lab.configOf("wk1")
		edited := bytes.Replace(config, []byte("certSANs: []"), []byte("certSANs: [192.0.2.1]"), 1)
		if bytes.Equal(edited, config) {
			t.Fatal("nothing is changed")
		}
		lab.talosctl("wk1", func(ctx context.Context, cl *client.Client) error {
			// A machine that has just booted shows no stored configuration, so no trial either.
			_, err := cl.ApplyConfiguration(ctx, &machineapi.ApplyConfigurationRequest{Data: config, Mode: machineapi.ApplyConfigurationRequest_NO_REBOOT})
			if err == nil {
				_, err = cl.ApplyConfiguration(ctx, &machineapi.ApplyConfigurationRequest{Data: edited, Mode: c.mode})
			}
			return err
		})
		requireRefused(t, lab.Client().upgradeKubernetes(t.Context()), "wk1: it has a configuration that is staged or tried")
		c.over(lab)
		lab.mustUpgradeKubernetes()
	})
}

// TestUpgradeKubernetesWaitsForWhatIsDown: even if every image is as wanted, the upgrade
// waits for a component that does not run.
func TestUpgradeKubernetesWaitsForWhatIsDown(t *testing.T) {
	long(t)
	inLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		const image, plain, verbose = "registry.k8s.io/kube-scheduler:v1.35.4", "    scheduler:\n", "    scheduler:\n        extraArgs:\n            v: \"3\"\n"
		lab.brokenImage("cp1", image, talosapi.Loops)
		lab.editConfig("cp1", plain, verbose) // it restarts
		time.Sleep(time.Minute)
		rep, err := lab.Client().UpgradeKubernetes(t.Context(), labKubernetes, true)
		if err != nil || len(rep.Plan.Nodes[0].Lacks) != 1 || !strings.HasPrefix(rep.Plan.Nodes[0].Lacks[0], "kube-scheduler: its pod is not Ready") {
			t.Fatalf("%+v, %v", rep.Plan, err)
		}
		if rep, err = lab.Client().UpgradeKubernetes(t.Context(), labKubernetes, false); err == nil || !strings.Contains(err.Error(), "upgrade-k8s/check: ") || !strings.Contains(err.Error(), "CrashLoopBackOff") {
			t.Errorf("%+v, %v", rep, err)
		}
		lab.brokenImage("cp1", image, talosapi.Sound)
		lab.editConfig("cp1", verbose, plain)
		time.Sleep(2 * time.Minute)
		if rep, err = lab.Client().UpgradeKubernetes(t.Context(), labKubernetes, false); err != nil || rep.Outcome != "nothing to do" {
			t.Errorf("%+v, %v", rep, err)
		}
	})
}

// TestUpgradeKubernetesNeedsEveryControlPlane: a member of etcd without a Node object is
// not skipped.
func TestUpgradeKubernetesNeedsEveryControlPlane(t *testing.T) {
	inLab(t, sim.Options{ControlPlanes: 3}, func(t *testing.T, lab *Lab) {
		lab.Replace("recast.yaml", fmt.Sprintf("  - {name: cp3, schematic: %s, vmid: %d}\n", lab.node("cp3").Schematic, lab.node("cp3").VMID), "")
		without(store.Nodes(), "", "cp3")(lab)
		requireRefused(t, lab.Client().upgradeKubernetes(t.Context()), "etcd member cp3: its machine is no control plane that Kubernetes shows")
	})
}
