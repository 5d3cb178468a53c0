package guestboot

import "time"

// readTSC reads the time stamp counter, in program order.
func readTSC() uint64

// measureTSC returns the frequency of the time stamp counter in kHz, or 0 when
// two measurements do not agree: it does not tick evenly then.
func measureTSC() int64 {
	const span = 5 * time.Millisecond
	a := sampleTSC()
	time.Sleep(span)
	b := sampleTSC()
	time.Sleep(span)
	c := sampleTSC()
	first, whole := a.until(b), a.until(c)
	if whole <= 0 || first < whole*0.9999 || first > whole*1.0001 {
		return 0
	}
	return int64(whole + 0.5)
}

// tscSample is the counter's value at an instant.
type tscSample struct {
	at    time.Time
	ticks uint64
}

// until is the frequency between two samples, in kHz.
func (a tscSample) until(b tscSample) float64 {
	return float64(b.ticks-a.ticks) * 1e6 / float64(b.at.Sub(a.at).Nanoseconds())
}

// sampleTSC keeps, of several tries, the one least disturbed.
func sampleTSC() (s tscSample) {
	const tries = 20
	best := time.Duration(1<<63 - 1)
	for range tries {
		before := time.Now()
		ticks := readTSC()
		took := time.Since(before)
		if took < best {
			best, s = took, tscSample{before.Add(took / 2), ticks}
		}
	}
	return s
}
