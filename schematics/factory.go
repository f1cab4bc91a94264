package schematics

import (
	"context"
	"encoding/pem"
	"fmt"
	"slices"

	"github.com/recast-sh/recast/internal/fault"
)

// Factory knows what an Image Factory would build; its lists may lag behind the Catalog.
type Factory interface {
	// Extensions lists the official extensions that the factory has for a Talos version.
	Extensions(ctx context.Context, talos string) ([]OfficialExtension, error)
	// Overlays lists the official overlays that the factory has for a Talos version.
	Overlays(ctx context.Context, talos string) ([]OfficialOverlay, error)
	// Broken lists the Talos versions that the factory has marked as broken: it
	// builds nothing for them, and has no lists either.
	Broken(ctx context.Context) ([]string, error)
	// SecureBootCertificate is the PEM certificate by which the factory signs images
	// for Secure Boot. A factory that signs none is an error of kind Config.
	SecureBootCertificate(ctx context.Context) ([]byte, error)
}

// OfficialOverlay is an overlay as a factory lists it.
type OfficialOverlay struct {
	Name   string // "rpi_generic"
	Image  string // as schematics name it: "siderolabs/sbc-raspberrypi"
	Ref    string // repository: "ghcr.io/siderolabs/sbc-raspberrypi"
	Digest string // of the image index
}

// served is what the factory says that it would build.
type served struct {
	asked      bool // there is something for it to build, and it builds the Talos version
	extensions []OfficialExtension
	overlays   []OfficialOverlay
}

// askFactory asks the factory for all that the lock depends on.
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

// withoutFactory refuses what only a factory can say.
func (r *resolver) withoutFactory(overlays bool) error {
	if r.req.SecureBoot {
		return fault.Configf("images for Secure Boot are signed by an Image Factory, and none builds here")
	}
	if overlays {
		return fault.Configf("overlays are listed by an Image Factory, and there is none")
	}
	return nil
}

// askExtensions asks for the factory's list. There is none for a version that is
// marked as broken: siderolabs/image-factory, internal/artifacts, validateTalosVersion.
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
		err := fault.ExtensionUnknown.Configf("Talos %s is marked broken by the Image Factory, which builds nothing of it", talos)
		if r.req.TalosPlace != "" {
			err = fault.Configf("%s: %w", r.req.TalosPlace, err)
		}
		return fault.WithHint(err, "choose another version: the release notes of Talos say which one mends it")
	}
	r.warnings.add(Warning{
		Kind: BrokenVersion, Subject: talos,
		Text: fmt.Sprintf("Talos %s, which is locked, was marked broken by the Image Factory: it builds nothing of it any more", talos),
		Hint: "what was built and published stays usable; choose another version: the release notes of Talos say which one mends it",
	})
	return nil
}

// askSecureBoot pins the certificate by which the factory signs.
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
			Text: fmt.Sprintf("the factory signs for Secure Boot by certificate %s by now, but the lock has %s", key, old.SecureBootKey),
			Hint: "machines that have enrolled only the locked certificate do not boot what the other one signed: make sure that they know the new one, then run `recast lock --update`",
		})
	}
	return nil
}

// checkSecureBoot compares the certificate by which a factory signs with the locked one.
func (l Lock) checkSecureBoot(certificate []byte) error {
	key, err := secureBootKey(certificate)
	if err != nil || key == l.SecureBootKey {
		return err
	}
	return fault.WithHint(fault.ImageDiffers.Refusedf("the factory signs for Secure Boot by certificate %s, but the lock has %s", key, l.SecureBootKey),
		"machines that have enrolled only the locked certificate do not boot what the other one signed: make sure that they know the new one, then run `recast lock --update`")
}

// secureBootKey is the SHA-256 of a certificate.
func secureBootKey(certificate []byte) (string, error) {
	block, _ := pem.Decode(certificate)
	if block == nil || block.Type != "CERTIFICATE" {
		return "", fmt.Errorf("the factory's Secure Boot certificate is none, in PEM")
	}
	return sum(string(block.Bytes)), nil
}

// compareWithList warns of official extensions that were published anew since they were
// locked, unless the factory builds those already, which was warned of.
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
				Text: fmt.Sprintf("extension %s %s was published anew: the registry lists %s, locked is %s", x.Official(), now.Version, now.Digest, x.Digest),
				Hint: "`recast lock --update` takes it; until then the locked one is built in",
			})
		}
	}
}

// compareWithFactory warns of what the factory would build otherwise.
func (r *resolver) compareWithFactory(official map[string]OfficialExtension) {
	for _, name := range r.lock.Names() {
		if !r.served.asked || r.req.Files[name].Imager {
			continue
		}
		e := r.lock.Schematics[name]
		r.warnings.add(e.behind(r.served.extensions, official)...)
		r.warnings.add(e.OutdatedOverlay(r.served.overlays)...)
	}
}
