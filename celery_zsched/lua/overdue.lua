-- overdue: of a part of the leased or waiting ids, the one that stands for the earliest moment; changes nothing.
-- KEYS: leases claims timelines...
-- ARGV: level (-1: the leased; 0 and more: what waits there, up to the moment `ahead` from now), from (a rank), limit,
--       ahead (microseconds: what is tried again waits for a later moment than the one it stands for)
-- RETURNS: how many were looked at, and if one of them stands for a moment that has passed: now, id, that moment, and
--          who has it, or had it last
-- RULES: 2
local leases, claims = KEYS[1], KEYS[2]
local timelines = {unpack(KEYS, 3)}
local level, from, limit, ahead = tonumber(ARGV[1]), ARGV[2], ARGV[3], tonumber(ARGV[4])
-- @include clock record

local key, most = leases, '+inf'
if level >= 0 then
  key, most = timelines[level + 1], stamp(now + ahead)
end
local found = call('ZRANGEBYSCORE', key, '-inf', most, 'WITHSCORES', 'LIMIT', from, limit)
local ids, scores = {}, {}
for at = 1, #found, 2 do
  ids[#ids + 1], scores[#scores + 1] = found[at], found[at + 1]
end
local records = #ids > 0 and call('HMGET', claims, unpack(ids)) or {}
local earliest
for position, id in ipairs(ids) do
  local _, _, _, due, holder = read_record(records[position])
  due = due or (level >= 0 and scores[position])
  local moment = due and tonumber(due) or now
  if moment < now and (not earliest or moment < earliest.moment) then
    earliest = {moment = moment, id = id, holder = holder}
  end
end
if not earliest then
  return {#ids}
end
return {#ids, stamp(now), earliest.id, stamp(earliest.moment), earliest.holder}
