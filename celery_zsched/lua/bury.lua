-- bury: set ids aside as dead, with body, deliveries, reason and last holder; the oldest dead beyond the bound go for good.
-- KEYS: leases claims bodies parked dead reasons notes rules timelines...
-- ARGV: keep (how many dead to keep), then four per item: id, token ('' whoever has it), reason,
--       note (what happened; '' leaves the old note)
-- RETURNS: the ids that were not buried: unknown, or the token is no longer current
-- RULES: 1, 2, 4, 7 (the dead are bounded)
-- @flags allow-oom
local leases, claims, bodies, parked, dead, reasons, notes, rules =
  KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7], KEYS[8]
local timelines = {unpack(KEYS, 9)}
local keep = tonumber(ARGV[1])
local WIDTH = 4
-- @include clock record place dead life

local left = {}
for at = 2, #ARGV, WIDTH do
  local id, token, reason, note = ARGV[at], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3]
  local record = call('HGET', claims, id)
  local place, level, score = find_place(id)
  if not place or (token ~= '' and not holds(record, token)) then
    left[#left + 1] = id
  else
    local old, count, held_level, due, holder = read_record(record)
    lift(id, place, level)
    call('ZADD', dead, stamp(now), id)
    call('HSET', reasons, id, reason)
    if note ~= '' then
      call('HSET', notes, id, note)
    end
    call('HSET', claims, id, write_record(voided(old), count, level or held_level, due or score, holder))
  end
end

bound_dead(keep)
live_as_before(rules)
return left
