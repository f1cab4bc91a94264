package factoryapi_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/siderolabs/image-factory/pkg/client"
	"github.com/siderolabs/image-factory/pkg/schematic"

	"github.com/recast-sh/recast/internal/sim/artefact"
	"github.com/recast-sh/recast/internal/sim/factoryapi"
	"github.com/recast-sh/recast/internal/sim/must"
	"github.com/recast-sh/recast/internal/sim/network"
	"github.com/recast-sh/recast/internal/sim/record"
)

func TestExtensionList(t *testing.T) {
	inLab(t, func(t *testing.T, l *lab) {
		list := must.Get(l.client.ExtensionsVersions(t.Context(), talosVersion))(t)
		var names []string
		for _, e := range list {
			names = append(names, e.Name)
		}
		want := []string{
			"siderolabs/iscsi-tools", "siderolabs/qemu-guest-agent", "siderolabs/tailscale",
			"siderolabs/util-linux-tools", "siderolabs/intel-ucode",
		}
		must.Equal(t, "names", want, names)
		idx := must.Get(l.pull(registryAddr + "/siderolabs/qemu-guest-agent:11.0.2"))(t)
		pushed := must.Get(idx.Digest())(t)
		agent := client.ExtensionInfo{
			Name: "siderolabs/qemu-guest-agent", Ref: registryAddr + "/siderolabs/qemu-guest-agent:11.0.2",
			Digest: pushed.String(), Author: "Markus Reiter",
			Description: "This system extension provides the QEMU Guest Agent service.",
		}
		must.Equal(t, "agent", agent, list[1])
	})
}

func TestSchematicIDs(t *testing.T) {
	inLab(t, func(t *testing.T, l *lab) {
		must.Equal(t, "empty schematic", "376567988ad370138ad8b2698212367b8edcb69b5fd68c80be1f2ec7d603b4ba", l.register(nil))
		must.Equal(t, "guest agent", agentID, l.register([]string{"siderolabs/qemu-guest-agent"}))
		got, err := l.client.SchematicGet(t.Context(), agentID)
		want := &schematic.Schematic{Customization: schematic.Customization{
			SystemExtensions: schematic.SystemExtensions{OfficialExtensions: []string{"siderolabs/qemu-guest-agent"}},
		}}
		diff := cmp.Diff(want, got)
		must.Hold(t, err == nil && diff == "", "schematic (-want +got): %v\n%s", err, diff)
		_, err = l.client.SchematicGet(t.Context(), strings.Repeat("0", 64))
		must.Hold(t, client.IsHTTPErrorCode(err, http.StatusNotFound), "unknown schematic: err = %v", err)
	})
}

func TestRefusals(t *testing.T) {
	inLab(t, func(t *testing.T, l *lab) {
		agent := l.register([]string{"siderolabs/qemu-guest-agent"})
		nope := l.register([]string{"siderolabs/nope"})
		images := "/image/" + agent + "/"
		tests := map[string]struct {
			method, path, body string
			status             int
			text               string
		}{
			"unknown field":         {"POST", "/schematics", "customisation: {}\n", 400, "field customisation not found"},
			"owner":                 {"POST", "/schematics", "owner: me\ncustomization: {}\n", 400, "owner field is only supported in Enterprise edition"},
			"unknown extension":     {"GET", "/image/" + nope + "/v1.13.9/nocloud-amd64.iso", "", 400, `official extension "siderolabs/nope" is not available for Talos version v1.13.9`},
			"the same, installer":   {"GET", "/v2/nocloud-installer/" + nope + "/manifests/v1.13.9", "", 400, `official extension "siderolabs/nope" is not available for Talos version v1.13.9`},
			"unknown version":       {"GET", images + "v1.99.0/nocloud-amd64.iso", "", 404, "version 1.99.0 is not available"},
			"the same, HEAD":        {"HEAD", images + "v1.99.0/nocloud-amd64.iso", "", 404, ""},
			"the same, list":        {"GET", "/version/v1.99.0/extensions/official", "", 404, "version 1.99.0 is not available"},
			"the same, installer ":  {"GET", "/v2/nocloud-installer/" + agent + "/manifests/v1.99.0", "", 404, "failed to get base installer: version 1.99.0 is not available"},
			"malformed version":     {"GET", "/version/bogus/extensions/official", "", 500, "internal server error"},
			"malformed image":       {"GET", images + "bogus/nocloud-amd64.iso", "", 500, "internal server error"},
			"version without list":  {"GET", "/version/v1.13.8/extensions/official", "", 500, "internal server error"},
			"overlays":              {"GET", "/version/v1.13.9/overlays/official", "", 500, "internal server error"},
			"unknown schematic":     {"GET", "/image/0000/v1.13.9/nocloud-amd64.iso", "", 404, `schematic ID "0000" not found`},
			"no such asset":         {"GET", images + "v1.13.9/nocloud.txt", "", 400, `invalid profile path: "nocloud.txt"`},
			"no such architecture":  {"GET", images + "v1.13.9/nocloud-riscv64.iso", "", 400, `invalid architecture: "riscv64"`},
			"no such platform":      {"GET", images + "v1.13.9/toaster-amd64.iso", "", 500, "internal server error"},
			"secure boot":           {"GET", images + "v1.13.9/nocloud-amd64-secureboot.iso", "", 400, "secure boot is disabled"},
			"secure boot installer": {"GET", "/v2/nocloud-installer-secureboot/" + agent + "/manifests/v1.13.9", "", 400, "secure boot is disabled"},
			"disk image":            {"GET", images + "v1.13.9/nocloud-amd64.raw.xz", "", 501, "the lab builds no nocloud-amd64.raw.xz"},
			"checksum":              {"GET", images + "v1.13.9/nocloud-amd64.iso.sha256", "", 402, "enterprise not enabled"},
			"no installer":          {"GET", "/v2/nocloud/" + agent + "/manifests/v1.13.9", "", 400, "invalid image: nocloud"},
			"unknown digest":        {"GET", "/v2/nocloud-installer/" + agent + "/manifests/sha256:" + strings.Repeat("0", 64), "", 404, "NAME_UNKNOWN"},
		}
		for name, tt := range tests {
			resp, body := l.do(tt.method, tt.path, tt.body)
			must.Hold(t, resp.StatusCode == tt.status && strings.Contains(body, tt.text),
				"%s: %d %q, want %d %q", name, resp.StatusCode, body, tt.status, tt.text)
		}
	})
}

func TestAssets(t *testing.T) {
	inLab(t, func(t *testing.T, l *lab) {
		id := l.register([]string{"siderolabs/qemu-guest-agent"}, "recast.lock=sha256-abc")
		path := "/image/" + id + "/" + talosVersion + "/nocloud-amd64.iso"

		started := time.Now()
		head, _ := l.do(http.MethodHead, path, "")
		must.Hold(t, head.StatusCode == http.StatusOK && time.Since(started) >= time.Second,
			"HEAD: %s after %s; it has to build the image", head.Status, time.Since(started))
		built := time.Now()
		resp, body := l.do(http.MethodGet, path+"?filename=x.iso", "")
		must.Hold(t, time.Since(built) == 0, "a built image took %s", time.Since(built))
		must.Equal(t, "bytes that HEAD announces, and GET sends", head.ContentLength, int64(len(body)))
		must.Equal(t, "Content-Disposition", `attachment; filename="x.iso"`, resp.Header.Get("Content-Disposition"))
		for _, absent := range []string{"ETag", "Last-Modified", "Accept-Ranges"} {
			must.Equal(t, absent, "", resp.Header.Get(absent))
		}

		img := must.Get(artefact.ReadISO([]byte(body)))(t)
		_, line := l.do(http.MethodGet, "/image/"+id+"/1.13.9/cmdline-nocloud-amd64", "")
		must.Hold(t, strings.HasPrefix(line, "talos.platform=nocloud ") &&
			strings.HasSuffix(line, " recast.lock=sha256-abc"), "cmdline = %q", line)
		_, canonical := l.do(http.MethodGet, "/schematics/"+id, "")
		want := artefact.Image{
			TalosVersion: talosVersion, Arch: "amd64", Platform: "nocloud",
			Cmdline: strings.Replace(line, " net.ifnames=0 ", " net.ifnames=0 "+artefact.HaltIfInstalled+" ", 1), SchematicID: id, SchematicYAML: canonical,
			SchematicAuthor: "Image Factory (http://" + factoryAddr + ")", Extensions: img.Extensions,
		}
		must.Equal(t, "ISO", want, img)
		must.Hold(t, len(img.Extensions) == 1 && digestOf(t, img.Extensions[0]) == l.listed(),
			"extensions = %v", img.Extensions)
		want.Cmdline = line
		must.Equal(t, "installer", want, l.installer(id))
	})
}

func TestOnlyTheISOHasMeta(t *testing.T) {
	inLab(t, func(t *testing.T, l *lab) {
		id, _, err := l.client.SchematicCreate(t.Context(), schematic.Schematic{Customization: schematic.Customization{
			Meta: []schematic.MetaValue{{Key: 0xc, Value: "x"}},
		}})
		must.Do(t, err)
		const arg = "talos.environment=INSTALLER_META_BASE64=MHhjPXg=" // 0xc=x
		must.Contain(t, "ISO", l.iso(id).Cmdline, arg)
		line := l.installer(id).Cmdline
		must.Hold(t, !strings.Contains(line, "META"), "installer: %q", line)
	})
}

func TestRenamedExtension(t *testing.T) {
	inLab(t, func(t *testing.T, l *lab) {
		e := artefact.Extension{Name: "i915", Version: "1", Files: map[string][]byte{"/x": nil}}
		must.Do(t, l.catalog.Publish(t.Context(), talosVersion, []artefact.Extension{e}))
		img := l.iso(l.register([]string{"siderolabs/i915-ucode"}))
		must.Hold(t, len(img.Extensions) == 1 && img.Extensions[0].Name == "i915", "extensions = %v", img.Extensions)
	})
}

func TestInstallerReferences(t *testing.T) {
	inLab(t, func(t *testing.T, l *lab) {
		id := l.register([]string{"siderolabs/qemu-guest-agent"})
		digest := func(reference string) string {
			t.Helper()
			idx := must.Get(l.pull(factoryAddr + "/" + reference))(t)
			return must.Get(idx.Digest())(t).String()
		}
		byTag := digest("nocloud-installer/" + id + ":" + talosVersion)
		must.Equal(t, "latest", byTag, digest("nocloud-installer/"+id+":latest"))
		must.Equal(t, "by digest", byTag, digest("nocloud-installer/"+id+"@"+byTag))
		metal := digest("installer/" + id + ":" + talosVersion)
		got := digest("metal-installer/" + id + ":" + talosVersion)
		must.Hold(t, got == metal && got != byTag, "metal-installer = %s, installer = %s, nocloud-installer = %s", got, metal, byTag)
		idx, err := l.pull(registryAddr + "/factory/nocloud-installer/" + id + ":" + talosVersion)
		must.Be(t, err == nil, "the factory keeps its installers in the registry: %v", err)
		must.Get(artefact.ReadInstaller(idx, "arm64"))(t)
	})
}

func TestRequestsAreRecordedAndCanBeBroken(t *testing.T) {
	inLab(t, func(t *testing.T, l *lab) {
		id := l.register(nil)
		l.installer(id)
		must.Equal(t, "Mutations", 1, l.recorder.Mutations())
		want := record.Call{Seq: 1, Proto: "factory", Target: factoryAddr, Method: "POST", Path: "/schematics", Mutation: true}
		must.Equal(t, "first call", want, l.recorder.Calls()[0])
		l.recorder.Hooks(func(record.Call) error { return errors.New("dead") }, nil)
		must.Hold(t, must.Err(l.client.Versions(t.Context())) != nil, "factory: a refused call was answered")
		must.Hold(t, must.Err(l.pull(registryAddr+"/siderolabs/iscsi-tools:v0.2.0")) != nil,
			"registry: a refused call was answered")
	})
}

func TestAnswerWaitsForTheRecorder(t *testing.T) {
	inLab(t, func(t *testing.T, l *lab) {
		const takes = 7 * time.Second
		l.recorder.Hooks(nil, func(record.Call) { time.Sleep(takes) })
		started := time.Now()
		l.register(nil)
		must.Equal(t, "answered after", takes, time.Since(started))
	})
}

func TestCloseEndsBuilds(t *testing.T) {
	inLab(t, func(t *testing.T, l *lab) {
		id := l.register(nil)
		started := time.Now()
		time.AfterFunc(time.Second, l.factory.Close)
		resp, body := l.do(http.MethodGet, "/v2/nocloud-installer/"+id+"/manifests/"+talosVersion, "")
		must.Hold(t, resp.StatusCode == http.StatusInternalServerError && time.Since(started) == time.Second,
			"after %s: %s: %s; want the build to end with its factory", time.Since(started), resp.Status, body)
		time.Sleep(time.Minute)
		must.Hold(t, must.Err(l.pull(registryAddr+"/factory/nocloud-installer/"+id+":"+talosVersion)) != nil,
			"an installer was pushed after the end")
	})
}

// TestKernelArguments: where a schematic's arguments go in the imager's command line (siderolabs/go-procfs).
func TestKernelArguments(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		args []string
		want []string // parts of the line
		not  string
	}{
		"at the end":            {[]string{"a=1", "b"}, []string{"=never a=1 b"}, ""},
		"beside the others":     {[]string{"net.ifnames=1", "a=1", "pti=off", "a=2"}, []string{"net.ifnames=0 net.ifnames=1 ", " pti=on pti=off ", "=never a=1 a=2"}, ""},
		"instead of others":     {[]string{"console=ttyS1"}, []string{"talos.platform=nocloud console=ttyS1 net.ifnames"}, "console=tty1"},
		"a key taken away":      {[]string{"-console", "a=1"}, []string{"talos.platform=nocloud net.ifnames", "=never a=1"}, "console=tty"},
		"a value taken away":    {[]string{"-pti=on", "-selinux=0", "-none"}, []string{"slab_nomerge consoleblank=0", " selinux=1 "}, "pti"},
		"a dash, and two words": {[]string{"-", "a=1 b=2"}, []string{"=never - a=1 b=2"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			inLab(t, func(t *testing.T, l *lab) {
				_, line := l.do(http.MethodGet, "/image/"+l.register(nil, tc.args...)+"/"+talosVersion+"/cmdline-nocloud-amd64", "")
				must.Contain(t, "line", line, tc.want...)
				must.Hold(t, tc.not == "" || !strings.Contains(line, tc.not), "%q is in %q", tc.not, line)
			})
		})
	}
}

// TestLists: the factory's lists for versions that are marked as broken, and of overlays.
func TestLists(t *testing.T) {
	t.Parallel()
	rec := record.New()
	registry := factoryapi.NewRegistry(rec)
	factory := must.Get(factoryapi.New(factoryapi.Options{
		URL: "http://factory", Registry: "127.0.0.1:5000", Transport: registry.Transport(), Recorder: rec,
		Versions: []string{"v1.13.7", "v1.13.8", "v1.13.9"}, Broken: []string{"v1.13.8"},
	}))(t)
	defer factory.Close()
	digest := "sha256:" + strings.Repeat("a", 64)
	publish := func(talos, name string) {
		t.Helper()
		catalog := factoryapi.Catalog{Registry: "127.0.0.1:5000", Transport: registry.Transport()}
		list := []factoryapi.Overlay{{Name: name, Image: "ghcr.io/siderolabs/sbc-raspberrypi:v0.2.0", Digest: digest}}
		if name == "" {
			list = nil
		}
		must.Do(t, catalog.PublishOverlays(t.Context(), talos, list))
	}
	publish("v1.13.9", "rpi_generic")
	publish("v1.13.7", "")
	ask := func(path string) string {
		w := httptest.NewRecorder()
		factory.ServeHTTP(w, httptest.NewRequest("GET", path, nil))
		return strings.TrimSpace(w.Body.String())
	}
	listed := func(name string) string {
		return `[{"name":"` + name + `","image":"siderolabs/sbc-raspberrypi","ref":"ghcr.io/siderolabs/sbc-raspberrypi:v0.2.0","digest":"` + digest + `"}]`
	}
	const overlays = "/version/v1.13.9/overlays/official"
	for _, q := range []struct{ path, want string }{
		{"/versions", `["v1.13.7","v1.13.9"]`},
		{"/versions?broken=true", `["v1.13.8"]`},
		{"/version/v1.13.8/extensions/official", "version 1.13.8 is not available"},
		{"/version/v1.13.8/overlays/official", "version 1.13.8 is not available"},
		{"/version/v1.13.7/overlays/official", "internal server error"},
		{"/secureboot/signing-cert.pem", "internal server error"},
		{overlays, listed("rpi_generic")},
	} {
		must.Equal(t, q.path, q.want, ask(q.path))
	}
	publish("v1.13.9", "rpi_5")
	must.Equal(t, "the list is not the remembered one", listed("rpi_generic"), ask(overlays))
	factory.Restart()
	must.Equal(t, "after a restart", listed("rpi_5"), ask(overlays))
}

const storeAddr = "127.0.0.1:8081"

// got is an answer as the client sees it.
type got struct {
	status     int
	kind       string
	retryAfter string
	body       string
	cut        bool
	took       time.Duration
}

func (l *lab) see(path string) (got, error) {
	req := must.Get(http.NewRequestWithContext(l.t.Context(), http.MethodGet, "http://"+factoryAddr+path, nil))(l.t)
	start := time.Now()
	resp, err := l.transport.RoundTrip(req)
	if err != nil {
		return got{took: time.Since(start)}, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	must.Hold(l.t, err == nil || errors.Is(err, io.ErrUnexpectedEOF), "%v", err)
	return got{
		status: resp.StatusCode, kind: resp.Header.Get("Content-Type"), retryAfter: resp.Header.Get("Retry-After"),
		body: string(body), cut: err != nil, took: time.Since(start),
	}, nil
}

func TestTroubles(t *testing.T) {
	t.Parallel()
	const versions = `["v1.13.8","v1.13.9","v1.14.0-rc.0"]` + "\n"
	nginx := func(text string) string {
		return "<html>\r\n<head><title>" + text + "</title></head>\r\n<body>\r\n<center><h1>" + text + "</h1></center>\r\n<hr><center>nginx</center>\r\n</body>\r\n</html>\r\n"
	}
	for name, tc := range map[string]struct {
		trouble factoryapi.Trouble
		path    string
		want    got
	}{
		"down":         {factoryapi.Down(502, 0), "/versions", got{status: 502, kind: "text/html", body: nginx("502 Bad Gateway")}},
		"limited":      {factoryapi.Down(429, time.Minute), "/versions", got{status: 429, kind: "text/html", retryAfter: "60", body: nginx("429 Too Many Requests")}},
		"failing":      {factoryapi.Failing(), "/versions", got{status: 500, kind: "text/plain; charset=utf-8", body: "internal server error\n"}},
		"unaware":      {factoryapi.Unaware(), "/image/abc/v1.13.9/x.iso", got{status: 404, kind: "text/plain; charset=utf-8", body: "schematic ID \"abc\" not found\n"}},
		"cut":          {factoryapi.Cut(7), "/versions", got{status: 200, kind: "text/plain; charset=utf-8", body: versions[:7], cut: true}},
		"cut by store": {factoryapi.CutByStore(7), "/versions", got{status: 200, kind: "text/plain; charset=utf-8", body: versions[:7] + "internal server error\n", cut: true}},
		"cut too late": {factoryapi.Cut(7000), "/versions", got{status: 200, kind: "text/plain; charset=utf-8", body: versions}},
	} {
		t.Run(name, func(t *testing.T) {
			inLab(t, func(t *testing.T, l *lab) {
				l.factory.Strike(1, tc.path, tc.trouble)
				answer, err := l.see(tc.path)
				diff := cmp.Diff(tc.want, answer, cmp.AllowUnexported(got{}))
				must.Hold(t, err == nil && diff == "", "%v (-want +got):\n%s", err, diff)
				if answer, err = l.see("/versions"); err != nil || answer.body != versions {
					t.Errorf("afterwards: %+v, %v", answer, err)
				}
			})
		})
	}
}

// TestBuilt: HEAD builds too, and cached assets are not rebuilt.
func TestBuilt(t *testing.T) {
	inLab(t, func(t *testing.T, l *lab) {
		id := l.register(nil)
		iso := "/image/" + id + "/" + talosVersion + "/nocloud-amd64.iso"
		l.do(http.MethodHead, iso, "")
		l.do(http.MethodGet, iso, "")
		l.do(http.MethodHead, "/v2/metal-installer/"+id+"/manifests/"+talosVersion, "")
		l.do(http.MethodGet, "/v2/metal-installer/"+id+"/manifests/"+talosVersion, "")
		l.do(http.MethodHead, "/v2/metal-installer/"+id+"/manifests/sha256-"+strings.Repeat("0", 64)+".sig", "")
		want := []string{"iso " + id + " " + talosVersion + " nocloud-amd64", "installer " + id + " " + talosVersion + " metal"}
		must.Equal(t, "built", want, l.factory.Built())
	})
}

// TestStore: an image is only available by the signed URL that the factory redirects to.
func TestStore(t *testing.T) {
	inLabWith(t, func(o *factoryapi.Options) { o.Store = "http://" + storeAddr }, func(t *testing.T, l *lab) {
		path := "/image/" + l.register(nil) + "/" + talosVersion + "/nocloud-amd64.iso"
		head, _ := l.do(http.MethodHead, path, "")
		must.Hold(t, head.StatusCode == http.StatusOK && head.ContentLength >= 1, "HEAD: %s, %d bytes", head.Status, head.ContentLength)
		resp, _ := l.do(http.MethodGet, path, "")
		link := resp.Header.Get("Location")
		must.Be(t, resp.StatusCode == http.StatusFound && strings.HasPrefix(link, "http://"+storeAddr+"/"), "GET: %s to %q", resp.Status, link)
		name, _, _ := strings.Cut(strings.TrimPrefix(link, "http://"+storeAddr), "?")
		for text, tc := range map[string]struct {
			link, authorization string
			status              int
			code                string
		}{
			"signed":             {link, "", http.StatusOK, ""},
			"signed for another": {strings.Replace(link, name, "/other", 1), "", http.StatusForbidden, "<Code>SignatureDoesNotMatch</Code>"},
			"not signed":         {"http://" + storeAddr + name, "", http.StatusForbidden, "<Code>SignatureDoesNotMatch</Code>"},
			"other credentials":  {link, "Basic abc", http.StatusBadRequest, "<Code>InvalidArgument</Code>"},
		} {
			req := httptest.NewRequest(http.MethodGet, tc.link, nil)
			if tc.authorization != "" {
				req.Header.Set("Authorization", tc.authorization)
			}
			rec := httptest.NewRecorder()
			l.factory.Store().ServeHTTP(rec, req)
			must.Hold(t, rec.Code == tc.status && strings.Contains(rec.Body.String(), tc.code),
				"%s: %d %.300q", text, rec.Code, rec.Body)
		}
	})
}

// TestDeletedManifestsLoseTheirTags: as in real registries, unlike the library that the lab uses.
func TestDeletedManifestsLoseTheirTags(t *testing.T) {
	t.Parallel()
	opts := []remote.Option{remote.WithContext(t.Context()), remote.WithTransport(factoryapi.NewRegistry(record.New()).Transport())}
	repository := must.Get(name.NewRepository(registryAddr + "/acme/talos"))(t)
	one, errOne := random.Image(16, 1)
	other, errOther := random.Image(16, 1)
	must.Be(t, errOne == nil && errOther == nil, "%v %v", errOne, errOther)
	for tag, img := range map[string]remote.Taggable{"a": one, "b": one, "c": other} {
		must.Do(t, remote.Push(repository.Tag(tag), img, opts...))
	}
	digest := must.Get(one.Digest())(t)
	must.Do(t, remote.Delete(repository.Digest(digest.String()), opts...))
	tags, err := remote.List(repository, opts...)
	diff := cmp.Diff([]string{"c"}, tags)
	must.Hold(t, diff == "" && err == nil, "%v, tags (-want +got):\n%s", err, diff)
	err = remote.Delete(repository.Digest(digest.String()), opts...)
	must.Hold(t, err != nil, "a second deletion is answered with less than %d", http.StatusNotFound)
}

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
	must.Bubble(t, func(t *testing.T) {
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
	resp := must.Get(l.transport.RoundTrip(req))(l.t)
	defer resp.Body.Close()
	b := must.Get(io.ReadAll(resp.Body))(l.t)
	return resp, string(b)
}

func (l *lab) iso(id string) artefact.Image {
	l.t.Helper()
	resp, body := l.do(http.MethodGet, "/image/"+id+"/"+talosVersion+"/nocloud-amd64.iso", "")
	must.Be(l.t, resp.StatusCode == http.StatusOK, "ISO: %s: %s", resp.Status, body)
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
	list := must.Get(l.client.ExtensionsVersions(l.t.Context(), talosVersion))(l.t)
	for _, e := range list {
		if e.Name == "siderolabs/qemu-guest-agent" {
			return e.Digest
		}
	}
	l.t.Fatal("the guest agent is not listed")
	return ""
}

// TestPatchStory: what siderolabs/image-factory v1.4.0 was observed to do when an
// extension is republished under its version.
func TestPatchStory(t *testing.T) {
	inLab(t, func(t *testing.T, l *lab) {
		agent := []string{"siderolabs/qemu-guest-agent"}
		first := l.register(agent)
		before := l.listed()
		require := func(step string, img artefact.Image, want string) {
			t.Helper()
			must.Hold(t, len(img.Extensions) == 1 && digestOf(t, img.Extensions[0]) == want,
				"%s: built of %v, want %s", step, img.Extensions, want)
		}
		require("ISO at first", l.iso(first), before)
		require("installer at first", l.installer(first), before)

		oldDigest, after, err := l.catalog.Patch(t.Context(), talosVersion, "qemu-guest-agent")
		must.Do(t, err)
		must.Be(t, oldDigest == before && after != before, "patched %s to %s, was listed as %s", oldDigest, after, before)

		must.Equal(t, "a running factory lists what it has cached", before, l.listed())
		require("ISO of a running factory", l.iso(first), before)
		require("installer of a running factory", l.installer(first), before)
		stale := l.register(agent, "recast.lock=sha256-stale")
		require("ISO of a new schematic of a running factory", l.iso(stale), before)
		require("installer of a new schematic of a running factory", l.installer(stale), before)

		l.factory.Restart()
		must.Equal(t, "a restarted factory lists", after, l.listed())
		require("ISO after a restart", l.iso(first), after)
		require("installer of an old schematic after a restart", l.installer(first), before)
		require("installer that a stale factory built, after a restart", l.installer(stale), before)
		fresh := l.register(agent, "recast.lock=sha256-fresh")
		require("ISO of a new schematic after a restart", l.iso(fresh), after)
		require("installer of a new schematic after a restart", l.installer(fresh), after)
	})
}

// TestInstallersSayWhenTheyWereBuilt: a lost installer is rebuilt from the cache, so that
// it is identical; other content is a new build.
func TestInstallersSayWhenTheyWereBuilt(t *testing.T) {
	inLab(t, func(t *testing.T, l *lab) {
		id := l.register([]string{"siderolabs/qemu-guest-agent"})
		type made struct {
			Digest string
			At     time.Time
		}
		installer := func(image string) made {
			t.Helper()
			idx := must.Get(l.pull(factoryAddr + "/" + image + "/" + id + ":" + talosVersion))(t)
			m := must.Get(idx.IndexManifest())(t)
			var times []time.Time
			for _, d := range m.Manifests {
				img := must.Get(idx.Image(d.Digest))(t)
				config := must.Get(img.ConfigFile())(t)
				times = append(times, config.Created.UTC())
			}
			digest := must.Get(idx.Digest())(t)
			must.Hold(t, len(times) == 2 && times[0] == times[1], "%s says %s of its architectures", image, times)
			return made{digest.String(), times[0]}
		}
		before := time.Now()
		first := installer("installer")
		must.Hold(t, !first.At.Before(before) && !first.At.After(time.Now()),
			"it says that it was built at %s, not after %s", first.At, before)
		time.Sleep(time.Hour)
		must.Equal(t, "the same asset by its other name", first, installer("metal-installer"))
		_, _, err := l.catalog.Patch(t.Context(), talosVersion, "qemu-guest-agent")
		must.Be(t, err == nil, "%v", err)
		l.factory.Restart()
		must.Equal(t, "what is in the registry is served as it is", first, installer("installer"))
		lost := must.Get(name.NewDigest(registryAddr + "/factory/metal-installer/" + id + "@" + first.Digest))(t)
		must.Do(t, remote.Delete(lost, remote.WithContext(t.Context()), remote.WithTransport(l.transport)))
		got := installer("metal-installer")
		must.Hold(t, got.At.Sub(first.At) >= time.Hour, "new content says that it was built at %s", got.At)
	})
}

func TestPatchChangesContentNotVersion(t *testing.T) {
	inLab(t, func(t *testing.T, l *lab) {
		read := func() artefact.Extension {
			t.Helper()
			idx := must.Get(l.pull(registryAddr + "/siderolabs/iscsi-tools:v0.2.0"))(t)
			return must.Get(artefact.ReadExtension(idx, "amd64"))(t)
		}
		digests := map[string]bool{read().Digest: true}
		for range 3 {
			_, digest, err := l.catalog.Patch(t.Context(), talosVersion, "iscsi-tools")
			must.Do(t, err)
			e := read()
			must.Equal(t, "the tag holds", []any{digest, "v0.2.0"}, []any{e.Digest, e.Version})
			digests[digest] = true
		}
		must.Equal(t, "digests after three patches", 4, len(digests))
		content := string(read().Files["/usr/local/etc/containers/iscsi-tools.yaml"])
		must.Hold(t, strings.HasSuffix(content, "# patch 1\n# patch 2\n# patch 3"), "content = %q", content)
		_, _, err := l.catalog.Patch(t.Context(), talosVersion, "nope")
		must.Hold(t, err != nil, "an extension that does not exist was patched")
	})
}

func TestBuildContinuesWithoutItsClient(t *testing.T) {
	inLab(t, func(t *testing.T, l *lab) {
		id := l.register(nil)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		req := must.Get(http.NewRequestWithContext(ctx, http.MethodGet,
			"http://"+factoryAddr+"/v2/nocloud-installer/"+id+"/manifests/"+talosVersion, nil))(t)
		resp, err := l.transport.RoundTrip(req)
		must.Be(t, err != nil, "answered in a second: %v", resp)
		time.Sleep(time.Minute)
		synctest.Wait()
		must.Pass(t, must.Err(l.pull(registryAddr+"/factory/nocloud-installer/"+id+":"+talosVersion)))
	})
}

func TestConcurrentRequestsShareOneBuild(t *testing.T) {
	inLab(t, func(t *testing.T, l *lab) {
		id := l.register([]string{"siderolabs/iscsi-tools"})
		started := time.Now()
		got := make(chan string)
		for range 3 {
			go func() {
				_, body := l.do(http.MethodGet, "/image/"+id+"/"+talosVersion+"/nocloud-amd64.iso", "")
				got <- body
			}()
		}
		first := <-got
		second, third := <-got, <-got
		must.Hold(t, first == second && first == third, "three requests got different images")
		must.Equal(t, "took one list and one build", 3500*time.Millisecond, time.Since(started))
	})
}

// signature is the content of a signature tag, fetched through the factory.
type signature struct {
	payload, signature []byte
}

func (l *lab) signatureOf(id string) (digest string, sig signature, found bool) {
	l.t.Helper()
	idx := must.Get(l.pull(factoryAddr + "/nocloud-installer/" + id + ":" + talosVersion))(l.t)
	d := must.Get(idx.Digest())(l.t)
	path := "/v2/nocloud-installer/" + id + "/manifests/sha256-" + d.Hex + ".sig"
	if resp, _ := l.do(http.MethodGet, path, ""); resp.StatusCode == http.StatusNotFound {
		return d.String(), signature{}, false
	}
	tag := must.Get(name.NewTag(factoryAddr + "/nocloud-installer/" + id + ":sha256-" + d.Hex + ".sig"))(l.t)
	img := must.Get(remote.Image(tag, remote.WithContext(l.t.Context()), remote.WithTransport(l.transport)))(l.t)
	m := must.Get(img.Manifest())(l.t)
	layers, err := img.Layers()
	must.Be(l.t, err == nil && len(layers) == 1, "%d layers, %v", len(layers), err)
	content, err := layers[0].Compressed()
	must.Do(l.t, err)
	defer content.Close()
	if sig.payload, err = io.ReadAll(content); err != nil {
		l.t.Fatal(err)
	}
	sig.signature, err = base64.StdEncoding.DecodeString(m.Layers[0].Annotations["dev.cosignproject.cosign/signature"])
	if err != nil || m.Layers[0].MediaType != "application/vnd.dev.cosign.simplesigning.v1+json" {
		l.t.Fatalf("layer of type %s: %v", m.Layers[0].MediaType, err)
	}
	return d.String(), sig, true
}

// published is the factory's public key; nil if it has none.
func (l *lab) published() *ecdsa.PublicKey {
	l.t.Helper()
	resp, body := l.do(http.MethodGet, "/oci/cosign/signing-key.pub", "")
	if resp.StatusCode != http.StatusOK || resp.Header.Get("Content-Type") != "application/x-pem-file" {
		l.t.Fatalf("%s, %s", resp.Status, resp.Header.Get("Content-Type"))
	}
	if body == "" {
		return nil
	}
	block, _ := pem.Decode([]byte(body))
	must.Be(l.t, block != nil && block.Type == "PUBLIC KEY", "no key: %s", body)
	return must.Get(x509.ParsePKIXPublicKey(block.Bytes))(l.t).(*ecdsa.PublicKey)
}

func (s signature) by(key *ecdsa.PublicKey) bool {
	hash := sha256.Sum256(s.payload)
	return ecdsa.VerifyASN1(key, hash[:], s.signature)
}

func TestInstallersAreSigned(t *testing.T) {
	inLab(t, func(t *testing.T, l *lab) {
		id := l.register(nil)
		digest, sig, found := l.signatureOf(id)
		if !found || !sig.by(l.published()) {
			t.Errorf("found %t; by the published key: %t", found, found && sig.by(l.published()))
		}
		var got any
		must.Do(t, json.Unmarshal(sig.payload, &got))
		want := map[string]any{
			"critical": map[string]any{
				"identity": map[string]any{"docker-reference": registryAddr + "/factory/nocloud-installer/" + id},
				"image":    map[string]any{"docker-manifest-digest": digest},
				"type":     "cosign container image signature",
			},
			"optional": nil,
		}
		must.Equal(t, "payload", want, got)
	})
}

func TestSigningKeys(t *testing.T) {
	t.Parallel()
	mine, theirs := newKey(t), newKey(t)
	for title, tc := range map[string]struct {
		factoryapi.Signing
		signedBy, published *ecdsa.PublicKey
	}{
		"handed in":      {factoryapi.Signing{Key: mine}, &mine.PublicKey, &mine.PublicKey},
		"another's told": {factoryapi.Signing{Key: mine, Published: &theirs.PublicKey}, &mine.PublicKey, &theirs.PublicKey},
		"keyless":        {factoryapi.Signing{Keyless: true}, nil, nil},
	} {
		t.Run(title, func(t *testing.T) {
			inSigningLab(t, tc.Signing, func(t *testing.T, l *lab) {
				_, sig, found := l.signatureOf(l.register(nil))
				must.Hold(t, found == (tc.signedBy != nil) && (!found || sig.by(tc.signedBy)),
					"signature: found %t, not by the key", found)
				got := l.published()
				must.Hold(t, got == nil == (tc.published == nil) && (got == nil || got.Equal(tc.published)), "another key is published")
			})
		})
	}
}

// TestUnsignedIsBuiltAgain: an installer in the registry is served only with the factory's signature.
func TestUnsignedIsBuiltAgain(t *testing.T) {
	inLab(t, func(t *testing.T, l *lab) {
		id := l.register(nil)
		digest, _, _ := l.signatureOf(id)
		built := func() int { return strings.Count(strings.Join(l.factory.Built(), "\n"), "installer "+id) }
		l.signatureOf(id)
		must.Equal(t, "built times", 1, built())
		repository := must.Get(name.NewRepository(registryAddr + "/factory/nocloud-installer/" + id))(t)
		tag := repository.Tag("sha256-" + strings.TrimPrefix(digest, "sha256:") + ".sig")
		opts := []remote.Option{remote.WithContext(t.Context()), remote.WithTransport(l.transport)}
		must.Do(t, remote.Delete(tag, opts...))
		if _, sig, found := l.signatureOf(id); !found || !sig.by(l.published()) || built() != 2 {
			t.Errorf("unsigned: found %t, built %d times", found, built())
		}
		must.Do(t, remote.Write(tag, empty.Image, opts...))
		if _, sig, found := l.signatureOf(id); !found || !sig.by(l.published()) || built() != 3 {
			t.Errorf("unsigned: found %t, built %d times", found, built())
		}
	})
}

func newKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	return must.Get(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
}
