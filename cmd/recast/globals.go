package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/recast-sh/recast/internal/fault"
)

const longHelp = `recast rebuilds the images of a Talos Linux cluster and rolls them through
Proxmox VE. It locks a schematic to extension digests, builds the installer and boot
ISO, compares their contents with the lock, publishes them for nodes and VMs, and
recreates each stale VM from the ISO. The persistent disks of the VM are carried over.

  recast init        write recast.yaml, schematics and recast.lock, for a cluster or a new one
  recast doctor      check what a roll needs: privileges, space, versions
  recast lock        resolve schematics to digests
  recast build       build the images and verify their contents
  recast publish     build, then copy installers to the mirror and boot ISOs to Proxmox
  recast plan        show what a roll would do, and why
  recast roll        publish and roll, or finish an interrupted roll
  recast bootstrap   make a new cluster, or its missing nodes
  recast remove      take a node away: its disks stay parked
  recast drift       check that every node runs exactly the lock
  recast config      compare and show machine configurations
  recast provenance  trace a node's image back to a lock, link by link
  recast status      show what is unfinished, where each disk is, what to type
  recast history     list past runs: when, what, how long each node was down
  recast report      write one run as an HTML file: timeline, plan, errors, hooks
  recast recover     cancel an interrupted replacement
  recast rollback    boot nodes from their previous system disk
  recast upgrade-k8s upgrade Kubernetes, one minor version at a time
  recast backup      save a verified snapshot of etcd
  recast restore     restore a single control plane's etcd from a snapshot
  recast rebuild     make the control planes of a broken cluster again
  recast operator    install recast-operator, which does all of this in Kubernetes
  recast runbook     show what to do about an error, by its code
  recast support-bundle  collect what is needed to get help, without secrets
  recast prune       remove old disks, boot ISOs and mirrored installers that are not needed

To try all of it without hardware: recast lab demo`

const envHelp = `Environment:
  PROXMOX_VE_API_TOKEN  the Proxmox API token, user@realm!id=uuid (never read from a file)
  PROXMOX_VE_ENDPOINT   URL of the Proxmox API, only for init
  TALOSCONFIG           talosconfig, if recast.yaml names none
  KUBECONFIG            kubeconfig of the cluster (default: ~/.kube/config)
  RECAST_CACHE_DIR      directory of cached boot ISOs (default: .recast/cache)
  DOCKER_CONFIG         directory of docker's config.json, whose logins and credential
                        helpers are used for registries (default: ~/.docker; podman's work too)
  RECAST_POD_NAMESPACE, RECAST_POD_NAME, RECAST_POD_UID  the pod in which recast runs, by
                        the downward API; it may be one of the cluster that is rolled
  GITHUB_TOKEN          used for ghcr.io if no login is stored for it
  NO_COLOR              no colours, even on a terminal; CLICOLOR_FORCE=1: colours, even
                        without one. --color overrides both
  OTEL_EXPORTER_OTLP_ENDPOINT  a collector of OpenTelemetry traces, over HTTP; the other
                        OTEL_ variables and TRACEPARENT work as usual`

// globals are the flags of every command.
type globals struct {
	config   string
	log      string
	metrics  string
	progress string
}

// usageErrors marks errors of argument checks as usage errors, on every command.
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

// format checks an output format early, so that a typing error does not cost a whole run.
func format(got string, allowed ...string) error {
	if slices.Contains(allowed, got) {
		return nil
	}
	return errUsage{fmt.Errorf("unknown output format %q: use one of %s", got, strings.Join(allowed, ", "))}
}
