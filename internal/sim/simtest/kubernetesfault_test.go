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

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/kubeupgrade"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/kubeapi/store"
	"github.com/recast-sh/recast/internal/sim/record"
	"github.com/recast-sh/recast/internal/sim/talosapi"
)

func (l *Lab) brokenImage(node, image string, d talosapi.Defect) {
	l.t.Helper()
	must(l.t, l.Trouble(node, talosapi.Trouble{Images: map[string]talosapi.Defect{image: d}}))
}

// TestUpgradeKubernetesFetchesFirst: if an image can't be pulled nothing is restarted.
func TestUpgradeKubernetesFetchesFirst(t *testing.T) {
	type story struct{ node, image string }
	eachLong(t, oneWorker(), map[string]story{
		"a kubelet of a worker": {"wk1", "ghcr.io/siderolabs/kubelet:v1.36.1"},
		"kube-proxy":            {"wk1", "registry.k8s.io/kube-proxy:v1.36.1"},
		"a scheduler":           {"cp1", "registry.k8s.io/kube-scheduler:v1.36.1"},
	}, func(t *testing.T, lab *Lab, c story) {
		before := lab.versions()
		lab.brokenImage(c.node, c.image, talosapi.Unpullable)
		requireRefused(t, lab.Client().upgradeKubernetes(t.Context()), c.node+" can't fetch "+c.image)
		requireSame(t, before, lab.versions(), "versions (-before +after)")
		lab.brokenImage(c.node, c.image, talosapi.Sound)
		lab.mustUpgradeKubernetes()
	})
}

// TestUpgradeKubernetesStops: a component that does not start ends the upgrade with a
// hint, no other node is touched, and the same command continues.
func TestUpgradeKubernetesStops(t *testing.T) {
	type story struct {
		image, step string
		defect      talosapi.Defect
		seen        string
	}
	eachLong(t, sim.Options{ControlPlanes: 3}, map[string]story{
		"an API server that never answers": {"registry.k8s.io/kube-apiserver:v1.36.1", "upgrade-k8s/kube-apiserver/cp2", talosapi.Unready, "its API server: "},
		"an API server that never serves":  {"registry.k8s.io/kube-apiserver:v1.36.1", "upgrade-k8s/kube-apiserver/cp2", talosapi.Unserving, "its API server: 127.42.7.12:6443 is not ready: poststarthook/rbac/bootstrap-roles"},
		"an API server that ends at once":  {"registry.k8s.io/kube-apiserver:v1.36.1", "upgrade-k8s/kube-apiserver/cp2", talosapi.Loops, "CrashLoopBackOff"},
		"a kubelet that never starts":      {"ghcr.io/siderolabs/kubelet:v1.36.1", "upgrade-k8s/kubelet/cp2", talosapi.Unready, ""},
	}, func(t *testing.T, lab *Lab, c story) {
		lab.brokenImage("cp2", c.image, c.defect)
		err := lab.Client().upgradeKubernetes(t.Context())
		requireFault(t, err, fault.Failed, c.step+": ", c.seen, "edit machineconfig", "run the same command again to continue")
		cp3, component := lab.versions()["cp3"], strings.TrimPrefix(strings.Split(c.step, "/")[1], "kube-")
		require(t, !strings.Contains(cp3, component+"=v1.36.1"), "cp3 was touched: %s", cp3)
		lab.brokenImage("cp2", c.image, talosapi.Sound)
		lab.editConfig("cp2", c.image, strings.Replace(c.image, "v1.36.1", "v1.35.4", 1)) // as the hint says
		time.Sleep(2 * time.Minute)
		lab.mustUpgradeKubernetes()
	})
}

// TestUpgradeKubernetesRefuses impossible upgrades before anything is changed.
func TestUpgradeKubernetesRefuses(t *testing.T) {
	inLongLab(t, threePlanes, func(t *testing.T, lab *Lab) {
		before := lab.versions()
		refuse := func(to, text string) {
			t.Helper()
			from := len(lab.Recorder.Calls())
			requireRefused(t, errOf(lab.Client().UpgradeKubernetes(t.Context(), to, false)), text)
			requireNone(t, lab.sent(from, func(c record.Call) bool { return c.Mutation }), "something was changed")
		}
		refuse("v1.37.0", "v1.35.4 → v1.37.0 skips v1.36")
		refuse("v1.37.0", "Talos v1.13.9 supports Kubernetes 1.31 to 1.36, not v1.37.0: roll to Talos v1.14 first")
		refuse("v1.35.3", "it is v1.35.4 already, and Kubernetes goes to no version before")
		refuse("v1.34.6", "it is v1.35.4 already")
		lab.editConfig("cp2", "    apiServer:\n", "    apiServer:\n        extraArgs:\n            feature-gates: HonorPVReclaimPolicy=true\n")
		refuse("v1.36.1", "cp2: kube-apiserver is given the feature gate HonorPVReclaimPolicy, which Kubernetes v1.36.1 no longer has")
		lab.editConfig("wk1", "    kubelet:\n", "    kubelet:\n        extraArgs:\n            feature-gates: CSIMigrationPortworx=false,Other=true\n")
		refuse("v1.36.1", "wk1: kubelet is given the feature gate CSIMigrationPortworx, which Kubernetes v1.36.1 no longer has")
		requireSame(t, before, lab.versions(), "versions (-before +after)")
		lab.editConfig("cp2", "HonorPVReclaimPolicy", "Other")
		lab.editConfig("wk1", "CSIMigrationPortworx=false,", "")
		lab.breakEtcd(talosapi.EtcdFault{NoSpace: true}, "cp3")
		time.Sleep(2 * time.Minute) // until wk1's kubelet is back
		requireRefused(t, lab.Client().upgradeKubernetes(t.Context()), "upgrade-k8s/check: etcd is not healthy")
	})
}

// TestARollKeepsKubernetes: a node is recreated with the Kubernetes that it ran, even if
// the user's file names an older or newer one.
func TestARollKeepsKubernetes(t *testing.T) {
	eachLong(t, threePlanes, map[string]string{"an older file": "v1.35.4", "a newer file": "v1.37.0"}, func(t *testing.T, lab *Lab, fresh string) {
		files := lab.keptConfigs()
		must(t, lab.Client().upgradeKubernetes(t.Context()))
		lab.Patch(sim.PatchedExtension)
		for node, config := range files {
			files[node] = cluster.Secret(strings.ReplaceAll(string(config), "v1.35.4", fresh))
		}
		files.user(lab, "20000101-0002-feed").mustRoll(planning.Policy{})
		lab.requireKubernetes(nextKubernetes)
		requireInSync(t, lab)
	})
}

// TestRollAfterAnInterruptedUpgrade: a roll keeps every node's Kubernetes, and then the upgrade continues.
func TestRollAfterAnInterruptedUpgrade(t *testing.T) {
	inLongLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		files := lab.keptConfigs()
		begun := lab.Client()
		begun.killedAt(t, before("upgrade-k8s/kube-scheduler/cp1"), begun.upgradeKubernetes)
		half := lab.versions()
		mustBe(t, strings.Contains(half["cp1"], "v1.35.4") && strings.Contains(half["cp1"], "v1.36.1"),
			"not in between: %v", half)
		lab.Patch(sim.PatchedExtension)
		files.user(lab, "20000101-0001-feed").mustRoll(policyFor("wk1"))
		requireSame(t, half["wk1"], lab.versions()["wk1"], "versions of wk1 (-before +after)")
		lab.mustUpgradeKubernetes()
	})
}

// TestUpgradeKubernetesLooksAgain: changes during the confirmation are not overwritten.
func TestUpgradeKubernetesLooksAgain(t *testing.T) {
	type story struct {
		meanwhile func(l *Lab)
		want      string // "": it continues
	}
	eachLong(t, oneWorker(), map[string]story{
		"nothing happens": {func(*Lab) { time.Sleep(time.Hour) }, ""},
		"some of it gets done": {func(l *Lab) {
			l.editConfig("cp1", "kube-scheduler:v1.35.4", "kube-scheduler:v1.36.1")
			time.Sleep(2 * time.Minute)
		}, ""},
		"someone goes elsewhere": {func(l *Lab) {
			l.editConfig("cp1", "kube-scheduler:v1.35.4", "kube-scheduler:v1.35.5")
			time.Sleep(2 * time.Minute)
		}, "kube-scheduler of cp1 is to run registry.k8s.io/kube-scheduler:v1.35.5"},
	}, func(t *testing.T, lab *Lab, c story) {
		user := lab.Client()
		user.Upgrades = func(kubeupgrade.Plan) (bool, error) { c.meanwhile(lab); return true, nil }
		err := user.upgradeKubernetes(t.Context())
		if c.want == "" {
			must(t, err)
			lab.requireKubernetes(nextKubernetes)
		} else {
			requireRefused(t, err, "the cluster is no longer as the plan says: "+c.want)
		}
	})
}

// editConfig replaces a part of a machine's configuration, without a reboot.
func (l *Lab) editConfig(node, old, fresh string) {
	l.t.Helper()
	config := string(l.configOf(node))
	text := strings.Replace(config, old, fresh, 1)
	mustBe(l.t, text != config, "%s has no %q in its configuration", node, old)
	s, n := l.session(), l.node(node)
	defer s.end()
	must(l.t, s.machines.Talos.ReplaceConfig(l.t.Context(), n.Addr, n.UUID, cluster.Secret(text)))
}

// TestUpgradeKubernetesIsKilled at every point, and run again with its journal or without: the result is the same.
func TestUpgradeKubernetesIsKilled(t *testing.T) {
	long(t)
	var points []point
	t.Run("undisturbed", func(t *testing.T) {
		inLabOnce(t, oneWorker(), func(t *testing.T, lab *Lab) {
			points, _ = lab.finish(t, upgradesKubernetes)
			lab.requireKubernetes(nextKubernetes)
		})
	})
	type kill struct {
		point
		elsewhere bool
	}
	var kills []kill
	var config, pull int
	for _, p := range points {
		config += strings.Count(p.name, "ApplyConfiguration")
		pull += strings.Count(p.name, "Pull")
		kills = append(kills, kill{p, false}, kill{p, true})
	}
	require(t, config == 6 && pull >= 7, "%d configurations and %d pulls among %q", config, pull, points)
	for _, k := range chosenKills(t, kills, 1, func(k kill) bool { return k.at%5 == 2 && k.elsewhere == (k.at%2 == 0) }) {
		where := map[bool]string{false: "here", true: "elsewhere"}[k.elsewhere]
		t.Run(fmt.Sprint(k.at, " ", strings.ReplaceAll(k.name, "/", " "), " ", where), func(t *testing.T) {
			inLabOnce(t, oneWorker(), func(t *testing.T, lab *Lab) {
				boots := lab.boots()
				lab.diesAt(t, k.point, upgradesKubernetes)
				c := lab.as("20000101-0001-feed")
				if c.Elsewhere = k.elsewhere; k.elsewhere {
					lab.loseJournal()
				}
				rep := valueOf(c.UpgradeKubernetes(t.Context(), nextKubernetes, false))(t)
				require(t, rep.Outcome == "done" || rep.Outcome == "nothing to do", "%+v", rep)
				lab.requireKubernetes(nextKubernetes)
				requireSame(t, boots, lab.boots(), "boots (-before +after)")
			})
		})
	}
}

func upgradesKubernetes(ctx context.Context, c *Client) error { return c.upgradeKubernetes(ctx) }

// TestUpgradeKubernetesLeavesStagedConfigurations: a configuration that is staged for the
// next boot, or on trial, does not become active with a component's image.
func TestUpgradeKubernetesLeavesStagedConfigurations(t *testing.T) {
	type story struct {
		mode machineapi.ApplyConfigurationRequest_Mode
		over func(l *Lab)
	}
	eachLong(t, oneWorker(), map[string]story{
		"staged": {machineapi.ApplyConfigurationRequest_STAGED, func(l *Lab) {
			l.talosctl("wk1", func(ctx context.Context, c *client.Client) error { return c.Reboot(ctx) })
			time.Sleep(2 * time.Minute)
		}},
		"tried": {machineapi.ApplyConfigurationRequest_TRY, func(*Lab) { time.Sleep(2 * time.Minute) }},
	}, func(t *testing.T, lab *Lab, c story) {
		config := lab.configOf("wk1")
		edited := bytes.Replace(config, []byte("certSANs: []"), []byte("certSANs: [192.0.2.1]"), 1)
		mustBe(t, !bytes.Equal(edited, config), "nothing is changed")
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
	inLongLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		const image, plain, verbose = "registry.k8s.io/kube-scheduler:v1.35.4", "    scheduler:\n", "    scheduler:\n        extraArgs:\n            v: \"3\"\n"
		lab.brokenImage("cp1", image, talosapi.Loops)
		lab.editConfig("cp1", plain, verbose) // it restarts
		time.Sleep(time.Minute)
		rep, err := lab.Client().UpgradeKubernetes(t.Context(), labKubernetes, true)
		mustBe(t, err == nil && len(rep.Plan.Nodes[0].Lacks) == 1 &&
			strings.HasPrefix(rep.Plan.Nodes[0].Lacks[0], "kube-scheduler: its pod is not Ready"), "%+v, %v", rep.Plan, err)
		requireError(t, errOf(lab.Client().UpgradeKubernetes(t.Context(), labKubernetes, false)), "upgrade-k8s/check: ",
			"CrashLoopBackOff")
		lab.brokenImage("cp1", image, talosapi.Sound)
		lab.editConfig("cp1", verbose, plain)
		time.Sleep(2 * time.Minute)
		rep, err = lab.Client().UpgradeKubernetes(t.Context(), labKubernetes, false)
		require(t, err == nil && rep.Outcome == "nothing to do", "%+v, %v", rep, err)
	})
}

// TestUpgradeKubernetesNeedsEveryControlPlane: a member of etcd without a Node object is not skipped.
func TestUpgradeKubernetesNeedsEveryControlPlane(t *testing.T) {
	inLab(t, sim.Options{ControlPlanes: 3}, func(t *testing.T, lab *Lab) {
		lab.Replace("recast.yaml", fmt.Sprintf("  - {name: cp3, schematic: %s, vmid: %d}\n", lab.node("cp3").Schematic, lab.node("cp3").VMID), "")
		without(store.Nodes(), "", "cp3")(lab)
		requireRefused(t, lab.Client().upgradeKubernetes(t.Context()), "etcd member cp3: its machine is no control plane that Kubernetes shows")
	})
}
