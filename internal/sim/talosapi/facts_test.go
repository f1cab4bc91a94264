package talosapi_test

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/cosi-project/runtime/pkg/safe"
	"github.com/siderolabs/talos/pkg/machinery/client"
	"github.com/siderolabs/talos/pkg/machinery/resources/block"
	"github.com/siderolabs/talos/pkg/machinery/resources/cluster"
	"github.com/siderolabs/talos/pkg/machinery/resources/hardware"
	"github.com/siderolabs/talos/pkg/machinery/resources/network"
	"github.com/siderolabs/talos/pkg/machinery/resources/runtime"
)

// nodeFacts is what tests check of a machine.
type nodeFacts struct {
	uuid, version, cmdline, entry, schematic, extensions, bootID, hostname, identity string
}

func facts(t *testing.T, c *client.Client) nodeFacts {
	t.Helper()
	f, err := readFacts(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// readFacts leaves the fields of missing resources empty.
func readFacts(ctx context.Context, c *client.Client) (nodeFacts, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	var f nodeFacts
	exts, err := safe.StateListAll[*runtime.ExtensionStatus](ctx, c.COSI)
	if err != nil {
		return f, err
	}
	var lines []string
	for e := range exts.All() {
		m := e.TypedSpec().Metadata
		lines = append(lines, m.Name+" "+m.Version+" "+e.TypedSpec().Image)
		if m.Name == "schematic" {
			f.schematic = m.Version
		}
	}
	f.extensions = strings.Join(lines, ", ")
	if r, err := get[*hardware.SystemInformation](ctx, c, hardware.NewSystemInformation(hardware.SystemInformationID).Metadata()); err == nil {
		f.uuid = r.TypedSpec().UUID
	}
	if r, err := get[*runtime.Version](ctx, c, runtime.NewVersion().Metadata()); err == nil {
		f.version = r.TypedSpec().Version
	}
	if r, err := get[*runtime.KernelCmdline](ctx, c, runtime.NewKernelCmdline().Metadata()); err == nil {
		f.cmdline = r.TypedSpec().Cmdline
	}
	if r, err := get[*runtime.BootedEntry](ctx, c, runtime.NewBootedEntrySpec().Metadata()); err == nil {
		f.entry = r.TypedSpec().BootedEntry
	}
	if r, err := get[*network.HostnameStatus](ctx, c, network.NewHostnameStatus(network.NamespaceName, network.HostnameID).Metadata()); err == nil {
		f.hostname = r.TypedSpec().Hostname
	}
	if r, err := get[*cluster.Identity](ctx, c, cluster.NewIdentity(cluster.NamespaceName, cluster.LocalIdentity).Metadata()); err == nil {
		f.identity = r.TypedSpec().NodeID
	}
	if b, err := readFile(ctx, c, "/proc/sys/kernel/random/boot_id"); err == nil {
		f.bootID = strings.TrimSpace(b)
	}
	return f, nil
}

func readFile(ctx context.Context, c *client.Client, path string) (string, error) {
	r, err := c.Read(ctx, path)
	if err != nil {
		return "", err
	}
	b, err := io.ReadAll(r)
	if cerr := r.Close(); err == nil {
		err = cerr
	}
	return string(b), err
}

// volumes is "ID phase location", sorted.
func volumes(t *testing.T, c *client.Client) string {
	t.Helper()
	all, err := safe.StateListAll[*block.VolumeStatus](t.Context(), c.COSI)
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for v := range all.All() {
		if v.TypedSpec().Type == block.VolumeTypeDirectory {
			continue
		}
		lines = append(lines, fmt.Sprintf("%s %s %s", v.Metadata().ID(), v.TypedSpec().Phase, v.TypedSpec().Location))
	}
	slices.Sort(lines)
	return strings.Join(lines, ", ")
}

// partitionIDs maps each partition's device to its UUIDs.
func partitionIDs(t *testing.T, c *client.Client) map[resource.ID]string {
	t.Helper()
	all, err := safe.StateListAll[*block.DiscoveredVolume](t.Context(), c.COSI)
	if err != nil {
		t.Fatal(err)
	}
	ids := map[resource.ID]string{}
	for v := range all.All() {
		if v.TypedSpec().Type == "partition" {
			ids[v.Metadata().ID()] = v.TypedSpec().PartitionUUID + " " + v.TypedSpec().UUID
		}
	}
	return ids
}
