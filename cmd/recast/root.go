package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/recast-sh/recast/internal/fault"
)

const longHelp = `recast rebuilds the images of a Talos Linux cluster and rolls them through
Proxmox VE: it locks a schematic to extension digests, has installer and boot
ISO built, compares what they hold with the lock, puts them where nodes and VMs
get them, and recreates each stale VM from the ISO while the persistent disks of
the VM are carried over.

  recast init        find a cluster, and write recast.yaml, schematics and recast.lock
  recast doctor      what stands between here and a roll: privileges, space, versions
  recast lock        resolve schematics to digests
  recast build       have the images built, and verify what they hold
  recast publish     build, then installers to the mirror, boot ISOs to Proxmox
  recast plan        show what a roll would do, and why
  recast roll        publish and do it, or finish what was interrupted
  recast drift       does every node run exactly the lock?
  recast provenance  what a node's image goes back to, link by link
  recast status      what is half done, which disk is where, what to type
  recast history     past runs: when, what, how long each node was away
  recast report      one run as an HTML file: timeline, plan, errors, hooks
  recast recover     give an interrupted replacement up
  recast rollback    boot nodes from the system disk that they had before
  recast upgrade-k8s bring Kubernetes to another version, one minor at a time
  recast backup      save a verified snapshot of etcd
  recast restore     make etcd of a single control plane anew from a snapshot
  recast runbook     what to do about an error, by the code that it ends with
  recast support-bundle  what somebody who helps needs to see, without secrets
  recast prune       remove old disks, boot ISOs and mirrored installers that nothing needs

To try all of it without hardware: recast lab demo`

const envHelp = `Environment:
  PROXMOX_VE_API_TOKEN  the Proxmox API token, user@realm!id=uuid (never from a file of ours)
  PROXMOX_VE_ENDPOINT   address of the Proxmox API, for init alone
  TALOSCONFIG           talosconfig, where recast.yaml names none
  KUBECONFIG            kubeconfig of the cluster (default: ~/.kube/config)
  DOCKER_CONFIG         directory of docker's config.json, whose logins and credential
                        helpers open registries (default: ~/.docker; podman's serve too)
  GITHUB_TOKEN          opens ghcr.io where nobody is logged in
  NO_COLOR              no colours, whatever the terminal; CLICOLOR_FORCE=1: colours, though
                        there is none. --color decides over both
  OTEL_EXPORTER_OTLP_ENDPOINT  a collector of OpenTelemetry traces, over HTTP; the other
                        OTEL_ variables and TRACEPARENT hold as everywhere`

func newRootCmd(s *streams) *cobra.Command {
	var g globals
	c := &cobra.Command{
		Use: "recast", Short: "Rebuild Talos images and roll them through Proxmox VE",
		Long:          longHelp + "\n\n" + envHelp + "\n\n" + exitHelp,
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          cobra.NoArgs,
		RunE:          func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.SetIn(s.in)
	c.SetOut(s.out)
	c.SetErr(s.err)
	c.PersistentFlags().StringVarP(&g.config, "config", "c", "recast.yaml", "configuration `file`; paths in it are relative to it")
	c.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		return fault.WithHint(errUsage{err}, "%s --help", c.CommandPath())
	})
	c.AddCommand(
		newInitCmd(s), newDoctorCmd(s, &g), newLockCmd(s, &g), newBuildCmd(s, &g), newPublishCmd(s, &g),
		newPlanCmd(s, &g), newRollCmd(s, &g), newRecoverCmd(s, &g), newRollbackCmd(s, &g), newDriftCmd(s, &g), newProvenanceCmd(s, &g), newStatusCmd(s, &g), newHistoryCmd(s, &g), newReportCmd(s, &g), newPruneCmd(s, &g),
		newBackupCmd(s, &g), newRestoreCmd(s, &g), newUpgradeK8sCmd(s, &g),
		newRunbookCmd(s), newSupportBundleCmd(s, &g), newLabCmd(s), newVersionCmd(s), newDocsCmd(),
	)
	usageErrors(c)
	g.observe(c, s)
	colourful(c)
	return c
}

// globals are the flags of every command.
type globals struct {
	config   string
	log      string
	metrics  string
	progress string
}

// usageErrors gives the errors of argument checks their kind, on every command.
func usageErrors(c *cobra.Command) {
	if check := c.Args; check != nil {
		c.Args = func(c *cobra.Command, args []string) error {
			if err := check(c, args); err != nil {
				return fault.WithHint(errUsage{err}, "%s --help", c.CommandPath())
			}
			return nil
		}
	}
	for _, sub := range c.Commands() {
		usageErrors(sub)
	}
}

// format checks an output format early: a typing error must not cost a whole run.
func format(got string, allowed ...string) error {
	if slices.Contains(allowed, got) {
		return nil
	}
	return errUsage{fmt.Errorf("unknown output format %q: use one of %s", got, strings.Join(allowed, ", "))}
}
