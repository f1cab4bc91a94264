package talosapi

import (
	"context"
	"fmt"
	"time"

	"github.com/siderolabs/talos/pkg/machinery/config"
	"github.com/siderolabs/talos/pkg/machinery/constants"
	"google.golang.org/protobuf/types/known/durationpb"
)

// tryFor is the duration of a trial.
func tryFor(asked *durationpb.Duration) time.Duration {
	if asked == nil {
		return constants.ConfigTryTimeout
	}
	return asked.AsDuration()
}

func triedFor(d time.Duration) string {
	return fmt.Sprintf("\nThe config is applied in 'try' mode and will be automatically reverted back in %s", d)
}

// firstConfig is a machine's first configuration, from maintenance mode. One on trial is
// not stored on disk, not even after the system was installed with it.
type firstConfig struct {
	raw   []byte
	tried bool
}

// try makes a configuration active until d has passed or another one is applied. It is not
// stored (RollbackToConfigAfter).
func (b *boot) try(ctx context.Context, cfg config.Provider, d time.Duration) error {
	before := b.config()
	b.endTrial()
	b.mu.Lock()
	b.trial = time.AfterFunc(d, func() { // the client's own time: it is not of the machine's speed
		ctx, cancel := b.life()
		defer cancel()
		if ctx.Err() != nil {
			return
		}
		b.m.console("rolling back the configuration")
		if err := b.activate(ctx, before); err != nil && ctx.Err() == nil {
			b.m.console("config rollback failed %v", err)
		}
	})
	b.mu.Unlock()
	return b.activate(ctx, cfg)
}

// endTrial keeps the active configuration.
func (b *boot) endTrial() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.trial != nil {
		b.trial.Stop()
	}
}

// activate makes a configuration the active one of a configured machine; the stored one stays. A new
// address applies at once: until another configuration, or the next boot, the machine does not
// answer at the old one, where the API's clients and Kubernetes look for it.
func (b *boot) activate(ctx context.Context, cfg config.Provider) error {
	b.mu.Lock()
	b.cfg = cfg
	b.mu.Unlock()
	astray := b.m.attach(b.med.image, cfg).prefix.Addr() != b.m.addr()
	was := b.m.astray.Swap(astray)
	err := b.publishConfig(ctx, cfg)
	if image, up := b.m.runs.Load().(string); was != astray && up {
		if astray {
			b.withdraw()
		} else {
			b.announce(image)
		}
	}
	return err
}
