package factoryapi_test

import (
	"context"
	"io"
	"log"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/recast-sh/recast/internal/sim/artefact"
	"github.com/recast-sh/recast/internal/sim/factoryapi"
	"github.com/recast-sh/recast/internal/sim/must"
	"github.com/recast-sh/recast/internal/sim/network"
	"github.com/recast-sh/recast/internal/sim/record"
	"github.com/siderolabs/image-factory/pkg/client"
	"github.com/siderolabs/image-factory/pkg/schematic"
)

const (
	talosVersion = "v1.13.9"
	factoryAddr  = "127.0.0.1:8080"
	registryAddr = "127.0.0.1:5000"
	agentID      = "ce4c980550dd2ab1b17bbf2b08801c7eb59418eafe8f279833297925d67c7515"
)

// lab is a factory and a registry with the official extensions, on an in-memory network, with clients.
type lab struct {
	t         *testing.T
	recorder  *record.Recorder
	factory   *factoryapi.Factory
	catalog   factoryapi.Catalog
	transport *http.Transport
	client    *client.Client
}

// inLab runs a test in a lab, in a bubble.
func inLab(t *testing.T, test func(*testing.T, *lab)) {
	t.Helper()
	inLabWith(t, func(*factoryapi.Options) {}, test)
}

// inSigningLab is inLab with other options of signing.
func inSigningLab(t *testing.T, signing factoryapi.Signing, test func(*testing.T, *lab)) {
	t.Helper()
	inLabWith(t, func(o *factoryapi.Options) { o.Signing = signing }, test)
}

// inLabWith is inLab with other options of the factory.
func inLabWith(t *testing.T, set func(*factoryapi.Options), test func(*testing.T, *lab)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rec := record.New()
		registry := factoryapi.NewRegistry(rec)
		o := factoryapi.Options{
			URL: "http://" + factoryAddr, Registry: registryAddr, Transport: registry.Transport(),
			Versions: []string{"v1.13.8", talosVersion, "v1.14.0-rc.0"}, Recorder: rec,
			Delay: func(ctx context.Context, d time.Duration) error {
				select {
				case <-time.After(d):
					return nil
				case <-ctx.Done():
					return ctx.Err()
				}
			},
		}
		set(&o)
		factory := must.Get(factoryapi.New(o))(t)
		net := network.Memory()
		serve(t, net, registryAddr, registry)
		serve(t, net, factoryAddr, factory)
		t.Cleanup(factory.Close)

		transport := &http.Transport{DialContext: net.Dialer().DialContext}
		t.Cleanup(transport.CloseIdleConnections)
		c := must.Get(client.New("http://"+factoryAddr, client.WithClient(http.Client{Transport: transport})))(t)
		l := &lab{
			t: t, recorder: rec, factory: factory, transport: transport, client: c,
			catalog: factoryapi.Catalog{Registry: registryAddr, Transport: registry.Transport()},
		}
		must.Do(t, l.catalog.Publish(t.Context(), talosVersion, factoryapi.Official()))
		test(t, l)
	})
}

func serve(t *testing.T, net *network.Network, addr string, h http.Handler) {
	t.Helper()
	l := must.Get(net.Listen(addr))(t)
	srv := &http.Server{Handler: h, ErrorLog: log.New(io.Discard, "", 0)}
	go func() { _ = srv.Serve(l) }() // returns when srv is closed
	t.Cleanup(func() { _ = srv.Close() })
}

// register posts a schematic with these extensions and kernel arguments.
func (l *lab) register(extensions []string, args ...string) string {
	l.t.Helper()
	id, _, err := l.client.SchematicCreate(l.t.Context(), schematic.Schematic{Customization: schematic.Customization{
		ExtraKernelArgs:  args,
		SystemExtensions: schematic.SystemExtensions{OfficialExtensions: extensions},
	}})
	must.Do(l.t, err)
	return id
}

// do sends a request and returns the answer with its body.
func (l *lab) do(method, path, body string) (*http.Response, string) {
	l.t.Helper()
	req := must.Get(http.NewRequestWithContext(l.t.Context(), method, "http://"+factoryAddr+path, strings.NewReader(body)))(l.t)
	resp, err := l.transport.RoundTrip(req)
	must.Do(l.t, err)
	defer resp.Body.Close()
	b := must.Get(io.ReadAll(resp.Body))(l.t)
	return resp, string(b)
}

func (l *lab) iso(id string) artefact.Image {
	l.t.Helper()
	resp, body := l.do(http.MethodGet, "/image/"+id+"/"+talosVersion+"/nocloud-amd64.iso", "")
	if resp.StatusCode != http.StatusOK {
		l.t.Fatalf("ISO: %s: %s", resp.Status, body)
	}
	return must.Get(artefact.ReadISO([]byte(body)))(l.t)
}

// digestOf is the digest of the extension image with the same content; boot images don't contain it.
func digestOf(t *testing.T, e artefact.Extension) string {
	t.Helper()
	idx := must.Get(artefact.ExtensionIndex(e))(t)
	return must.Get(idx.Digest())(t).String()
}

// pull pulls an image through the factory or from the registry.
func (l *lab) pull(reference string) (v1.ImageIndex, error) {
	l.t.Helper()
	ref := must.Get(name.ParseReference(reference))(l.t)
	return remote.Index(ref, remote.WithContext(l.t.Context()), remote.WithTransport(l.transport))
}

func (l *lab) installer(id string) artefact.Image {
	l.t.Helper()
	idx := must.Get(l.pull(factoryAddr + "/nocloud-installer/" + id + ":" + talosVersion))(l.t)
	return must.Get(artefact.ReadInstaller(idx, "amd64"))(l.t)
}

// listed is the digest of the guest agent in the factory's list.
func (l *lab) listed() string {
	l.t.Helper()
	list, err := l.client.ExtensionsVersions(l.t.Context(), talosVersion)
	must.Do(l.t, err)
	for _, e := range list {
		if e.Name == "siderolabs/qemu-guest-agent" {
			return e.Digest
		}
	}
	l.t.Fatal("the guest agent is not listed")
	return ""
}
