package sim

import (
	"context"
	"fmt"

	"github.com/recast-sh/recast/internal/sim/network"
	"github.com/recast-sh/recast/internal/sim/pveapi"
	"github.com/recast-sh/recast/internal/sim/world"
)

const (
	tokenID     = "recast@pve!lab"
	tokenSecret = "5ec0ffee-1ab0-4000-8000-000000000001"

	// PoorToken exists but has no permissions: a token with privilege separation and no
	// entry of its own in the access control list.
	PoorToken = "poor@pve!lab=5ec0ffee-1ab0-4000-8000-000000000002"
)

// Token is the API token that recast is meant to use.
func (l *Lab) Token() string { return tokenID + "=" + tokenSecret }

// Privileges is the smallest role that can roll by recreate, on any layout.
func Privileges() []string {
	return []string{
		"VM.Allocate", "VM.Audit", "VM.PowerMgmt", "VM.Config.Disk", "VM.Config.CDROM", "VM.Config.CPU", "VM.Config.Memory",
		"VM.Config.Network", "VM.Config.HWType", "VM.Config.Options", "VM.GuestAgent.Audit",
		"Datastore.AllocateSpace", "Datastore.Audit", "Datastore.AllocateTemplate", "SDN.Use", "Sys.Audit",
	}
}

func (l *Lab) startProxmox(ctx context.Context) error {
	w := l.World
	w.AddStorage(world.Storage{ID: ISOStorage, Type: "cephfs", Shared: true, Content: []string{"iso"}})
	w.AddStorage(world.Storage{ID: "local", Type: "dir", Content: []string{"iso", "vztmpl", "snippets", "import"}})
	w.AddStorage(world.Storage{ID: DiskStorage, Type: l.o.DiskType, Shared: l.o.SharedDisks, Capacity: l.o.DiskCapacity, Content: []string{"images"}})
	w.AddRole("Recast", Privileges()...)
	w.AddToken(world.Token{ID: tokenID, Secret: tokenSecret, Privsep: true})
	for _, who := range []string{"recast@pve", tokenID} {
		w.Grant(world.ACL{Path: "/", Who: who, Role: "Recast", Propagate: true})
	}
	w.AddToken(world.Token{ID: "poor@pve!lab", Secret: PoorToken[len("poor@pve!lab="):], Privsep: true})

	var addrs []string
	for i := range l.o.Hosts {
		addrs = append(addrs, l.o.addr(firstHost+i).String())
	}
	cert, err := issuePair(nil, "pve", addrs)
	if err != nil {
		return err
	}
	l.pveCert = cert
	for i, addr := range addrs {
		host := hostName(i)
		w.AddHost(host)
		listener, err := l.o.Network.Listen(addr + ":" + proxmoxPort)
		if err != nil {
			return fmt.Errorf("listen on %s: %w", addr, err)
		}
		server := pveapi.New(w, l.Recorder, host)
		server.Serve(listener, cert)
		l.o.Network.Open(ctx, addr+":"+proxmoxPort, func() (network.Door, bool) { return network.Door{Handler: server, Certificate: cert.Leaf}, true })
		l.closers = append(l.closers, server.Close)
	}
	return nil
}
