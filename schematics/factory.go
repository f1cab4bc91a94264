package schematics

import (
	"context"
	"encoding/pem"
	"fmt"
	"slices"

	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/knownissue"
)

// Factory knows what an Image Factory would build; its lists may lag behind the Catalog.
type Factory interface {
	// Extensions lists the official extensions that the factory has for a Talos version.
	Extensions(ctx context.Context, talos string) ([]OfficialExtension, error)
	// Overlays lists the official overlays that the factory has for a Talos version.
	Overlays(ctx context.Context, talos string) ([]OfficialOverlay, error)
	// Broken lists the Talos versions that the factory has marked as broken: it
	// builds nothing for them, and has no lists for them.
	Broken(ctx context.Context) ([]string, error)
	// SecureBootCertificate is the PEM certificate with which the factory signs
	// images for Secure Boot. A factory that signs none is an error of kind Config.
	SecureBootCertificate(ctx context.Context) ([]byte, error)
}

// OfficialOverlay is an overlay in a factory's list.
type OfficialOverlay struct {
	Name   string // "rpi_generic"
	Image  string // in schematics: "siderolabs/sbc-raspberrypi"
	Ref    string // repository: "ghcr.io/siderolabs/sbc-raspberrypi"
	Digest string // of the image index
}

// served is what the factory says it would build.
type served struct {
	asked      bool // it has something to build, and builds the Talos version
	extensions []OfficialExtension
	overlays   []OfficialOverlay
}

// askFactory asks the factory for everything that the lock depends on.
func (r *resolver) askFactory(ctx context.Context, parsed map[string]Schematic) error {
	builds, overlays := false, false
	for name, s := range parsed {
		builds = builds || !r.req.Files[name].Imager
		overlays = overlays || s.doc.Overlay.Name != ""
	}
	if r.from.Factory == nil {
		return r.withoutFactory(overlays)
	}
	if builds {
		if err := r.askExtensions(ctx); err != nil {
			return err
		}
	}
	if r.req.SecureBoot {
		if err := r.askSecureBoot(ctx); err != nil {
			return err
		}
	}
	if !overlays {
		return nil
	}
	r.req.note("the Image Factory's list of overlays for Talos %s", r.req.Talos)
	var err error
	if r.served.overlays, err = r.from.Factory.Overlays(ctx, r.req.Talos); err != nil {
		return fmt.Errorf("list the factory's overlays for Talos %s: %w", r.req.Talos, err)
	}
	return nil
}

// withoutFactory refuses what requires a factory.
func (r *resolver) withoutFactory(overlays bool) error {
	if r.req.SecureBoot {
		return fault.Configf("images for Secure Boot are signed by an Image Factory, and no factory is used here")
	}
	if overlays {
		return fault.Configf("overlays are listed by an Image Factory, and there is none")
	}
	return nil
}

// askExtensions asks for the factory's list. A version marked as broken has none:
// siderolabs/image-factory, internal/artifacts, validateTalosVersion.
func (r *resolver) askExtensions(ctx context.Context) error {
	talos := r.req.Talos
	r.req.note("the Image Factory's list of extensions for Talos %s", talos)
	broken, err := r.from.Factory.Broken(ctx)
	if err != nil {
		return fmt.Errorf("ask the factory which Talos versions are marked broken: %w", err)
	}
	list, err := r.from.Factory.Extensions(ctx, talos)
	switch {
	case err == nil:
		r.served.asked, r.served.extensions = true, list
		return nil
	case !slices.Contains(broken, talos):
		return fmt.Errorf("list the factory's extensions for Talos %s: %w", talos, err)
	case r.req.Old == nil || r.req.Old.Talos != talos:
		err := fault.ExtensionUnknown.Configf("Talos %s is marked broken by the Image Factory, which does not build it", talos)
		if r.req.TalosPlace != "" {
			err = fault.Configf("%s: %w", r.req.TalosPlace, err)
		}
		return fault.WithHint(err, "choose another version: the release notes of Talos say which one fixes it")
	}
	r.lock.Broken = true
	r.warnings.add(Warning{
		Kind: BrokenVersion, Subject: talos,
		Text: fmt.Sprintf("Talos %s, which is locked, was marked broken by the Image Factory: it no longer builds it", talos),
		Hint: "what was built and published stays usable; choose another version: the release notes of Talos say which one fixes it",
	})
	return nil
}

// warnOfIssue warns of a release that no factory marks. Whether one of its defects concerns a node, only the node's plan can say.
func (r *resolver) warnOfIssue() {
	if issue, known := knownissue.Of(r.req.Talos); known && !issue.Scheduler {
		r.warnings.add(Warning{Kind: BrokenVersion, Subject: r.req.Talos, Text: issue.String(), Hint: issue.Hint()})
	}
}

// askSecureBoot pins the certificate with which the factory signs.
func (r *resolver) askSecureBoot(ctx context.Context) error {
	r.req.note("the Image Factory's certificate for Secure Boot")
	text, err := r.from.Factory.SecureBootCertificate(ctx)
	if err != nil {
		return fmt.Errorf("ask for the factory's Secure Boot certificate: %w", err)
	}
	key, err := secureBootKey(text)
	if err != nil {
		return err
	}
	r.lock.SecureBootKey = key
	if old := r.req.Old; old != nil && old.SecureBoot && old.SecureBootKey != key && !r.req.Update {
		r.lock.SecureBootKey = old.SecureBootKey
		r.warnings.add(Warning{
			Kind: SecureBootKeyDiffers, Subject: "Secure Boot", Locked: old.SecureBootKey, Found: key,
			Text: fmt.Sprintf("the factory signs for Secure Boot with certificate %s now, but the lock has %s", key, old.SecureBootKey),
			Hint: "machines that have enrolled only the locked certificate do not boot what the other one signed: make sure that they know the new one, then run `recast lock --update`",
		})
	}
	return nil
}

// checkSecureBoot compares the factory's certificate with the locked one.
func (l Lock) checkSecureBoot(certificate []byte) error {
	key, err := secureBootKey(certificate)
	if err != nil || key == l.SecureBootKey {
		return err
	}
	return fault.WithHint(fault.ImageDiffers.Refusedf("the factory signs for Secure Boot with certificate %s, but the lock has %s", key, l.SecureBootKey),
		"machines that have enrolled only the locked certificate do not boot what the other one signed: make sure that they know the new one, then run `recast lock --update`")
}

// secureBootKey is the SHA-256 of a certificate.
func secureBootKey(certificate []byte) (string, error) {
	block, _ := pem.Decode(certificate)
	if block == nil || block.Type != "CERTIFICATE" {
		return "", fmt.Errorf("the factory's Secure Boot certificate is not a PEM certificate")
	}
	return sum(string(block.Bytes)), nil
}

// compareWithList warns of official extensions that were republished since they were
// locked, unless the factory already builds those, which has its own warning.
func (r *resolver) compareWithList(official map[string]OfficialExtension) {
	for _, name := range r.lock.Names() {
		for _, x := range r.lock.Schematics[name].Extensions {
			now, listed := official[x.Official()]
			said := func(w Warning) bool { return w.Subject == x.Official() && w.Found == now.Digest }
			if x.Explicit || !listed || now.Digest == x.Digest || slices.ContainsFunc(r.warnings, said) {
				continue
			}
			r.warnings.add(Warning{
				Kind: Republished, Subject: x.Official(), Locked: x.Digest, Found: now.Digest,
				Text: fmt.Sprintf("extension %s %s was republished: the registry lists %s, locked is %s", x.Official(), now.Version, now.Digest, x.Digest),
				Hint: "`recast lock --update` takes it; until then the locked one is built in",
			})
		}
	}
}

// compareWithFactory warns of what the factory would build differently.
func (r *resolver) compareWithFactory(official map[string]OfficialExtension) {
	for _, name := range r.lock.Names() {
		if !r.served.asked || r.req.Files[name].Imager {
			continue
		}
		e := r.lock.Schematics[name]
		r.warnings.add(e.outdatedWithHints(r.served.extensions, official)...)
		r.warnings.add(e.OutdatedOverlay(r.served.overlays)...)
	}
}
