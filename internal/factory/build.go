package factory

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/pem"
	"errors"
	"fmt"
	"hash"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/siderolabs/image-factory/pkg/client"

	"github.com/recast-sh/recast/images"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/transport"
	"github.com/recast-sh/recast/schematics"
)

// tellEvery is how often a long build is reported.
const tellEvery = 30 * time.Second

// made holds the name of each kind of image in messages, and the ending of its file name.
var made = map[images.Artefact]struct{ title, ending string }{
	images.BootISO: {"ISO", ".iso"}, images.DiskImage: {"disk image", ".qcow2"},
}

// ImageURL returns where the factory serves a boot ISO or a disk image. The factory builds an ISO on the first
// request. A host can download a disk image from there as content "import": nothing else would unpack it.
func (c *Client) ImageURL(of images.Artefact, req images.ISORequest) string {
	file := req.Platform + "-" + req.Arch + suffix(req) + made[of].ending
	return c.base.JoinPath("image", req.SchematicID, req.Talos, file).String()
}

// Image requests an image. No HEAD comes first: the factory would build the image for a HEAD, too.
func (c *Client) Image(
	ctx context.Context, of images.Artefact, req images.ISORequest, note func(string),
) (io.ReadCloser, int64, error) {
	note = serialize(note)
	open := func(after time.Duration) (io.ReadCloser, int64, error) {
		if err := transport.Pause(ctx, after); err != nil {
			return nil, 0, c.unreachable(err)
		}
		return c.openImage(ctx, of, req, note)
	}
	body, size, err := c.openImage(ctx, of, req, note)
	if err != nil {
		return nil, 0, err
	}
	return &download{what: made[of].title, open: open, note: note, explain: c.unreachable, body: body, size: size, sum: sha256.New()}, size, nil
}

func (c *Client) openImage(ctx context.Context, of images.Artefact, req images.ISORequest, note func(string)) (io.ReadCloser, int64, error) {
	defer reportEvery(note, "the factory is building the "+made[of].title)()
	var resp *http.Response
	err := retry(ctx, asset, note, func() (err error) {
		resp, err = c.send(ctx, request{method: http.MethodGet, link: c.ImageURL(of, req), within: buildTimeout})
		return err
	})
	if err != nil {
		return nil, 0, c.explainMissing(err, req)
	}
	return resp.Body, resp.ContentLength, nil
}

func (c *Client) explainMissing(err error, req images.ISORequest) error {
	if !hasStatus(err, http.StatusNotFound) {
		return err
	}
	if e, ok := errors.AsType[*Error](err); ok && strings.Contains(e.Message, unknownSchematic) {
		return fault.WithHint(err, "the factory no longer knows the schematic: `recast publish --only build` registers it again")
	}
	return fault.WithHint(err, "the factory does not know Talos %s: %s/versions lists what it builds", req.Talos, c.base)
}

// serialize makes note safe for several goroutines; nil becomes a no-op.
func serialize(note func(string)) func(string) {
	if note == nil {
		return func(string) {}
	}
	var telling sync.Mutex
	return func(text string) {
		telling.Lock()
		defer telling.Unlock()
		note(text)
	}
}

// reportEvery reports, every tellEvery, how long something takes, until stop is called.
func reportEvery(note func(string), what string) (stop func()) {
	begun, over := time.Now(), make(chan struct{})
	var telling sync.WaitGroup
	telling.Go(func() {
		ticker := time.NewTicker(tellEvery)
		defer ticker.Stop()
		for {
			select {
			case <-over:
				return
			case <-ticker.C:
				note(fmt.Sprintf("%s, %s", what, time.Since(begun).Round(time.Second)))
			}
		}
	})
	return func() { close(over); telling.Wait() }
}

// manifests are the accepted types of an installer's manifest: the factory makes an index.
const manifests = "application/vnd.oci.image.index.v1+json, application/vnd.docker.distribution.manifest.list.v2+json"

// InstallerRepository returns the repository of a schematic's installers in the factory, which is also a registry.
func (c *Client) InstallerRepository(req images.ISORequest) string {
	return c.base.Host + "/" + installerImage(req) + "/" + req.SchematicID
}

func installerImage(req images.ISORequest) string { return req.Platform + "-installer" + suffix(req) }

func suffix(req images.ISORequest) string {
	if req.SecureBoot {
		return "-secureboot"
	}
	return ""
}

// BuildInstaller makes the factory build a schematic's installer, for every architecture, and returns when the
// installer can be pulled. The factory builds it on a request for the manifest of its tag. Registry clients send this
// request, too, but with less patience.
func (c *Client) BuildInstaller(ctx context.Context, req images.ISORequest, note func(string)) error {
	note = serialize(note)
	defer reportEvery(note, "the factory is building the installer")()
	// The manifest is in the factory's registry, to which it may redirect.
	r := c.get("v2", installerImage(req), req.SchematicID, "manifests", req.Talos)
	r.accept, r.within, r.stay = manifests, buildTimeout, true
	err := retry(ctx, asset, note, func() error {
		resp, err := c.send(ctx, r)
		if err != nil {
			return err
		}
		return resp.Body.Close()
	})
	if hasStatus(err, http.StatusUnauthorized) {
		return nil // the registry's client logs in
	}
	return c.explainMissing(err, req)
}

// heldBack is the number of received bytes that are not yet passed on. If the factory's own store breaks, "internal
// server error" ends up in the body: the factory answers by http.Error after sending half the image (image-factory,
// internal/frontend/http/image.go). The held bytes are dropped when a connection breaks.
const heldBack = 64

// download is an ISO or a disk image in transit. The factory ignores Range, so an interrupted download is read again
// from its beginning. The bytes up to the break must be the same: the factory does not build the same bytes twice.
type download struct {
	what    string // "ISO"
	open    func(after time.Duration) (io.ReadCloser, int64, error)
	note    func(string)
	explain func(error) error

	body     io.ReadCloser // nil between two connections
	size     int64         // announced; -1: unknown
	received int64         // received on this connection
	passed   int64         // passed to the reader
	sum      hash.Hash     // of what was passed on
	buffer   [heldBack + 32<<10]byte
	held     []byte // in buffer: received, not passed on
	whole    bool
	breaks   int
	failed   error
}

// Read returns all received bytes but the last heldBack. It returns those once the download is complete.
func (d *download) Read(p []byte) (int, error) {
	for d.failed == nil {
		if give := d.readable(); give > 0 {
			n := copy(p, d.held[:give])
			d.held = d.held[n:]
			d.sum.Write(p[:n]) // never fails
			d.passed += int64(n)
			return n, nil
		}
		if d.whole {
			return 0, io.EOF
		}
		d.failed = d.fill()
	}
	return 0, d.failed
}

func (d *download) readable() int {
	if d.whole {
		return len(d.held)
	}
	return len(d.held) - heldBack
}

// fill reads more from the connection, or opens a new one.
func (d *download) fill() error {
	kept := copy(d.buffer[:], d.held)
	n, err := d.body.Read(d.buffer[kept:])
	d.held = d.buffer[:kept+n]
	d.received += int64(n)
	switch {
	case errors.Is(err, io.EOF) && (d.size < 0 || d.received == d.size):
		d.whole = true
		return nil
	case errors.Is(err, io.EOF):
		err = io.ErrUnexpectedEOF
	case err == nil:
		return nil
	}
	return d.again(err)
}

// again reopens the download and skips to where it broke.
func (d *download) again(cause error) error {
	d.held = nil
	for {
		_ = d.body.Close() // it broke already
		d.body = nil
		d.breaks++
		switch {
		case errors.Is(cause, context.Canceled), errors.Is(cause, context.DeadlineExceeded):
			return d.explain(cause)
		case d.breaks == attempts:
			return d.explain(fmt.Errorf("the download broke off %d times, at last after %d MiB: %w", attempts, d.passed>>20, cause))
		}
		wait := time.Second << (d.breaks - 1)
		d.note(fmt.Sprintf("the download broke off after %d MiB (%s), beginning again in %s (%d of %d)",
			d.passed>>20, innermost(cause), wait, d.breaks+1, attempts))
		body, size, err := d.open(wait)
		if err != nil {
			return err
		}
		d.body = body
		if size != d.size {
			return d.differs()
		}
		same := sha256.New()
		if d.received, cause = io.CopyN(same, body, d.passed); cause != nil {
			continue
		}
		if !bytes.Equal(same.Sum(nil), d.sum.Sum(nil)) {
			return d.differs()
		}
		return nil
	}
}

func (d *download) differs() error {
	return fault.WithHint(d.explain(fmt.Errorf("after the download broke off, the factory sends another %s than before", d.what)),
		"it has rebuilt the %s, and a rebuild never has the same bytes: run it again", d.what)
}

// Close ends the download.
func (d *download) Close() error {
	if d.body == nil {
		return nil
	}
	return d.body.Close()
}

// Versions lists the Talos versions that the factory builds.
func (c *Client) Versions(ctx context.Context) ([]string, error) {
	var versions []string
	err := c.askJSON(ctx, c.get("versions"), &versions)
	return versions, err
}

// Broken lists the Talos versions that the factory has marked as broken and does not build.
func (c *Client) Broken(ctx context.Context) ([]string, error) {
	var broken []string
	r := c.get("versions")
	r.link += "?broken=true"
	if err := c.askJSON(ctx, r, &broken); err != nil || len(broken) == 0 {
		return nil, err
	}
	versions, err := c.Versions(ctx)
	if err != nil {
		return nil, err
	}
	// A factory that does not know the parameter lists the versions that it builds.
	if slices.ContainsFunc(broken, func(v string) bool { return slices.Contains(versions, v) }) {
		return nil, nil
	}
	return broken, nil
}

// Extensions lists the official extensions as the factory would build them now.
func (c *Client) Extensions(ctx context.Context, talos string) ([]schematics.OfficialExtension, error) {
	var list []client.ExtensionInfo
	if err := c.askJSON(ctx, c.get("version", talos, "extensions", "official"), &list); err != nil {
		return nil, c.unknownVersion(err)
	}
	official := make([]schematics.OfficialExtension, 0, len(list))
	for _, x := range list {
		ref, version := splitTag(x.Ref)
		official = append(official, schematics.OfficialExtension{
			Name: x.Name, Version: version, Ref: ref, Digest: x.Digest, Author: x.Author, Description: x.Description,
		})
	}
	return official, nil
}

// Overlays lists the official overlays as the factory would build them now.
func (c *Client) Overlays(ctx context.Context, talos string) ([]schematics.OfficialOverlay, error) {
	var list []client.OverlayInfo
	if err := c.askJSON(ctx, c.get("version", talos, "overlays", "official"), &list); err != nil {
		if hasStatus(err, http.StatusInternalServerError) {
			// The real factory gives this answer, too: its list of overlays must not be empty.
			err = fault.WithHint(err, "a factory without overlays for Talos %s gives this answer, too", talos)
		}
		return nil, c.unknownVersion(err)
	}
	overlays := make([]schematics.OfficialOverlay, 0, len(list))
	for _, x := range list {
		ref, _ := splitTag(x.Ref)
		overlays = append(overlays, schematics.OfficialOverlay{Name: x.Name, Image: x.Image, Ref: ref, Digest: x.Digest})
	}
	return overlays, nil
}

func (c *Client) unknownVersion(err error) error {
	if hasStatus(err, http.StatusNotFound) {
		return fault.WithHint(fault.As(fault.Config, err), "%s/versions lists the Talos versions that it builds", c.base)
	}
	return err
}

// splitTag cuts a reference at its tag; a port is not a tag.
func splitTag(ref string) (repository, tag string) {
	i := strings.LastIndex(ref, ":")
	if i < strings.LastIndex(ref, "/") {
		return ref, ""
	}
	return ref[:max(i, 0)], ref[i+1:]
}

// Knows reports whether the factory has registered a schematic.
func (c *Client) Knows(ctx context.Context, id string) (bool, error) {
	_, err := c.ask(ctx, c.get("schematics", id))
	if hasStatus(err, http.StatusNotFound) {
		return false, nil
	}
	return err == nil, err
}

// Register registers a schematic. If the factory rejects the schematic, the error is of kind Config and has the
// factory's message.
func (c *Client) Register(ctx context.Context, canonical string) (id, stored string, err error) {
	r := c.get("schematics")
	r.method, r.body = http.MethodPost, []byte(canonical)
	var answer struct {
		ID        string `json:"id"`
		Schematic string `json:"schematic"`
	}
	if err := c.askJSON(ctx, r, &answer); err != nil {
		return "", "", err
	}
	if answer.ID == "" {
		return "", "", c.foreign(errors.New("the answer has no ID for the schematic"))
	}
	if answer.Schematic != "" {
		return answer.ID, answer.Schematic, nil
	}
	text, err := c.ask(ctx, c.get("schematics", answer.ID)) // older factories return only the ID
	if err != nil {
		return "", "", fmt.Errorf("read the schematic back: %w", err)
	}
	return answer.ID, string(text), nil
}

// SigningKey returns the public key (PEM) with which the factory says it signs installers. It returns nil if the
// factory has none: an older factory, or a factory that signs without a key of its own and returns nothing.
func (c *Client) SigningKey(ctx context.Context) ([]byte, error) {
	key, err := c.ask(ctx, c.get("oci", "cosign", "signing-key.pub"))
	if hasStatus(err, http.StatusNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if len(bytes.TrimSpace(key)) == 0 {
		return nil, nil
	}
	return c.requirePEM(key, "signing key")
}

// SecureBootCertificate returns the certificate (PEM) with which the factory signs images for Secure Boot. A factory
// that signs none is an error of kind Config.
func (c *Client) SecureBootCertificate(ctx context.Context) ([]byte, error) {
	cert, err := c.ask(ctx, c.get("secureboot", "signing-cert.pem"))
	switch {
	case hasStatus(err, http.StatusInternalServerError), hasStatus(err, http.StatusNotFound):
		// The factory answers 500 if Secure Boot is disabled (image-factory, internal/secureboot/secureboot.go).
		return nil, fault.WithHint(fault.As(fault.Config, fmt.Errorf("certificate for Secure Boot: %w", err)),
			"a factory without images for Secure Boot gives this answer: set images.secureBoot to false, or name another factory in images.factory")
	case err != nil:
		return nil, fmt.Errorf("certificate for Secure Boot: %w", err)
	}
	return c.requirePEM(cert, "certificate for Secure Boot")
}

func (c *Client) requirePEM(text []byte, what string) ([]byte, error) {
	if block, _ := pem.Decode(text); block == nil {
		return nil, c.foreign(fmt.Errorf("the %s is not PEM", what))
	}
	return text, nil
}
