package netplumb

import (
	"fmt"
	"testing"
)

func BenchmarkUp(b *testing.B) {
	p := newReal(b, "be0001")
	up(b, p, "keeps00000") // the shared part stays
	b.ResetTimer()
	for i := range b.N {
		id := fmt.Sprintf("bench%05d", i)
		up(b, p, id)
		b.StopTimer()
		if err := p.Down(b.Context(), id); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
}
