package talos

import (
	"cmp"
	"context"
	"errors"
	"math"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/siderolabs/talos/pkg/machinery/resources/runtime"
	"google.golang.org/grpc/codes"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/observe"
)

// Claims reads what the machine at addr reports about the image that it runs. A
// reader's role suffices; what requires an admin is omitted.
func (c *Client) Claims(ctx context.Context, addr netip.Addr, uuid string) (observe.Claims, error) {
	return ask(ctx, c, addr, func(ctx context.Context, s session) (claims observe.Claims, err error) {
		if err := checkUUID(ctx, s, uuid, "what it says was not read"); err != nil {
			return claims, err
		}
		for _, read := range []func(context.Context, session, *observe.Claims) error{
			claimVersion, claimLayers, claimFactory, claimBoot, claimCmdline,
		} {
			if err := read(ctx, s, &claims); err != nil {
				return claims, err
			}
		}
		return claims, nil
	})
}

func claimVersion(ctx context.Context, s session, c *observe.Claims) error {
	var m cluster.Machine
	err := readVersion(ctx, s, &m)
	c.TalosVersion, c.Arch, c.Platform = m.TalosVersion, m.Arch, m.Platform
	return err
}

func claimLayers(ctx context.Context, s session, c *observe.Claims) error {
	all, err := list[*runtime.ExtensionStatus](ctx, s, runtime.NewExtensionStatus(runtime.NamespaceName, "").Metadata())
	if err != nil {
		return err
	}
	// The IDs are the layers' numbers ("10" comes after "9"), except for imager's
	// own last layer, which has a name.
	slices.SortStableFunc(all, func(a, b *runtime.ExtensionStatus) int {
		return cmp.Or(cmp.Compare(layerNumber(a), layerNumber(b)), cmp.Compare(a.Metadata().ID(), b.Metadata().ID()))
	})
	for _, e := range all {
		about := e.TypedSpec().Metadata
		c.Layers = append(c.Layers, observe.ExtensionLayer{Name: about.Name, Version: about.Version, Author: about.Author, ExtraInfo: about.ExtraInfo})
	}
	return nil
}

func layerNumber(e *runtime.ExtensionStatus) int {
	n, err := strconv.Atoi(e.Metadata().ID())
	if err != nil {
		return math.MaxInt
	}
	return n
}

func claimFactory(ctx context.Context, s session, c *observe.Claims) error {
	f, found, err := get[*runtime.ImageFactorySchematic](ctx, s, runtime.NewImageFactorySchematic(runtime.NamespaceName, runtime.ImageFactorySchematicID).Metadata())
	if err != nil || !found {
		return err
	}
	c.Factory = &observe.FactoryClaim{SchematicID: f.TypedSpec().SchematicID, Flavor: f.TypedSpec().Flavor, URL: f.TypedSpec().APIURL}
	return nil
}

func claimBoot(ctx context.Context, s session, c *observe.Claims) error {
	entry, found, err := get[*runtime.BootedEntry](ctx, s, runtime.NewBootedEntrySpec().Metadata())
	if err != nil {
		return err
	}
	if found {
		c.Booted.Entry = strings.ToLower(entry.TypedSpec().BootedEntry)
	}
	security, err := securityState(ctx, s)
	if err != nil {
		return err
	}
	if security != nil {
		c.Booted.UKI, c.Booted.SecureBoot = new(security.BootedWithUKI), security.SecureBoot
	}
	var m cluster.Machine
	if err := readNextBoot(ctx, s, &m); err != nil {
		return err
	}
	c.Booted.Next = m.NextBoot
	return nil
}

// lockArg is the kernel argument that carries a lock hash.
const lockArg = "recast.lock="

// claimCmdline keeps only recast's own argument of the command line: the others may
// contain tokens.
func claimCmdline(ctx context.Context, s session, c *observe.Claims) error {
	line, found, err := get[*runtime.KernelCmdline](ctx, s, runtime.NewKernelCmdline().Metadata())
	if err != nil {
		return err
	}
	text := ""
	if found {
		text = line.TypedSpec().Cmdline
	} else {
		b, err := file(ctx, s, cmdlineFile)
		if e, ok := errors.AsType[*answerError](err); ok && e.code == codes.PermissionDenied {
			return nil
		}
		if err != nil {
			return err
		}
		text = string(b)
	}
	c.Booted.Cmdline = true
	for arg := range strings.FieldsSeq(text) {
		if hash, ours := strings.CutPrefix(strings.Trim(arg, `"`), lockArg); ours {
			c.Booted.Locks = append(c.Booted.Locks, hash)
		}
	}
	return nil
}
