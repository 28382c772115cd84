-- counts: how many ids stand where, at one moment; changes nothing.
-- KEYS: leases parked dead timelines...
-- ARGV: none
-- RETURNS: now, ready (due, waiting), delayed (waiting, not yet due), leased, parked, dead, oldest (the earliest due
--          moment that waits; '' if none), ended (how many of the leased are free for the next claim)
-- RULES: 2
local leases, parked, dead = KEYS[1], KEYS[2], KEYS[3]
local timelines = {unpack(KEYS, 4)}
-- @include clock

local ready, waiting, oldest = 0, 0, nil
for _, key in ipairs(timelines) do
  waiting = waiting + call('ZCARD', key)
  ready = ready + call('ZCOUNT', key, '-inf', stamp(now))
  local first = call('ZRANGE', key, 0, 0, 'WITHSCORES')
  if first[2] and (not oldest or tonumber(first[2]) < tonumber(oldest)) then
    oldest = first[2]
  end
end
return {
  stamp(now), ready, waiting - ready, call('ZCARD', leases), call('ZCARD', parked), call('ZCARD', dead), oldest or '',
  call('ZCOUNT', leases, '-inf', stamp(now)),
}
